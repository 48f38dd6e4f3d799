"""One micro-batch on a mesh and on one device; `python -m tests.numerics.meshes` tries every mesh."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import Accumulator
from forebay.models.config import ModelConfig
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective
from tests.numerics import training
from tests.unit.models import tiny

# Dense attention and little optimization: half the time to compile.
DENSE = ComputeSettings(loss_chunk_tokens=16, attention="dense")
QUICK = {"xla_backend_optimization_level": 0}


@functools.cache
def programs(
    mesh: MeshSettings,
    compute: ComputeSettings = DENSE,
    objective: ObjectiveSettings = training.OBJECTIVE,
    config: ModelConfig = tiny.CONFIG,
) -> TrainPrograms:
    """Return programs that are not compiled."""
    return TrainPrograms(
        config,
        make_mesh(mesh),
        training.OPTIMIZER,
        build_objective(objective),
        compute,
        annotations_of(objective),
    )


@functools.cache
def compiled(*settings: Any) -> Any:
    """Return the compiled gradient of `training.ROWS`, by what `programs` is asked for."""
    return programs(*settings).lower("accumulate", training.ROWS.tokens.shape).compile(QUICK)


@functools.cache
def gradients(*settings: Any) -> Accumulator:
    """Return gradient and sums of `training.ROWS`, by what `programs` is asked for."""
    built, scalar = programs(*settings), np.float32(training.DENOMINATOR)
    config = settings[3] if len(settings) > 3 else tiny.CONFIG
    params = built.init_state(tiny.params(config)).params
    placed = built.place(training.ROWS)
    return compiled(*settings)(built.frozen.weights, params, built.zeros(), placed, scalar, scalar)


def difference(mesh: MeshSettings, *settings: Any) -> float:
    """Return how far gradient and loss on a mesh are from those of one device, relative."""
    got, expected = gradients(mesh, *settings), gradients(training.SINGLE, *settings)
    pairs = [(np.asarray(got.sums), np.asarray(expected.sums)), (got.gradients, expected.gradients)]
    return max(training.relative_error(*pair) for pair in pairs)


def every_mesh(num_devices: int = 8) -> list[MeshSettings]:
    """Return all meshes of up to `num_devices` devices that can split the tiny model and its rows."""
    found = []
    for sizes in itertools.product((1, 2, 4), repeat=5):
        mesh = MeshSettings(**dict(zip(MeshSettings.model_fields, sizes, strict=True)))
        fits = 1 < mesh.num_devices <= num_devices and mesh.row_multiple <= len(training.LENGTHS)
        if fits and tiny.CONFIG.num_kv_heads % mesh.tensor == 0:
            found.append(mesh)
    return found


def main() -> None:
    """Print the difference of every mesh, each kind of attention; end with an error if one is too large."""
    worst = 0.0
    for mesh, attention in itertools.product(every_mesh(), ("dense", "blockwise")):
        error = difference(mesh, DENSE.model_copy(update={"attention": attention}))
        worst = max(worst, error)
        print(f"{error:.1e}  {attention:9}  {mesh}", flush=True)
    print(f"worst: {worst:.1e}")
    raise SystemExit(worst > 1e-5)


if __name__ == "__main__":
    main()
