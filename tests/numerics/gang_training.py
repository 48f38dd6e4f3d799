"""One process of a learner of several: trains the steps of `training`, saves, and tells its numbers."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal, get_args

import jax
import msgspec
import numpy as np

from forebay.clock import SystemClock
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.gang.gathering import Gathering
from forebay.learner.gang.joining import Place, join
from forebay.learner.programs import TrainPrograms
from forebay.models.experts import Experts
from forebay.models.router_loss import NO_ROUTER_LOSS, RouterLoss
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective
from forebay.trajectory import PolicyVersion
from tests.numerics import training
from tests.unit.models import tiny

Kind = Literal["dense", "experts"]
STEPS = 3
CURSOR = CheckpointCursor(run_id="run", version=PolicyVersion(0, STEPS))


class Report(msgspec.Struct):
    """What one process found.

    Args:
        grad_norms: Of every step.
        logprobs: Sum over all rows, under the last parameters.
        params: Digest of the gathered parameters; empty where they are not gathered.
        devices: Devices of this process, and of all.
    """

    grad_norms: list[float]
    logprobs: float
    params: str
    devices: tuple[int, int]


CONFIGS = {
    "dense": tiny.CONFIG,
    "experts": dataclasses.replace(tiny.CONFIG, family="mixtral", experts=Experts(8, 2, 16)),
}
# Adam with a tiny epsilon turns the rounding of the gradients of rarely chosen experts into whole steps.
OPTIMIZERS = {
    "dense": training.OPTIMIZER,
    "experts": training.OPTIMIZER.model_copy(update={"epsilon": 1e-4}),
}


def programs(kind: Kind, mesh: MeshSettings) -> TrainPrograms:
    """Return programs of a kind of model; they are not compiled."""
    return TrainPrograms(
        CONFIGS[kind],
        make_mesh(mesh),
        OPTIMIZERS[kind],
        build_objective(training.OBJECTIVE),
        training.COMPUTE,
        annotations_of(training.OBJECTIVE),
        of_routers=RouterLoss(balance=0.5, z=0.1) if kind == "experts" else NO_ROUTER_LOSS,
    )


def main(
    process: int, mesh: MeshSettings, num_processes: int, port: int, directory: Path, kind: Kind
) -> Report:
    """Take part in a training; return what this process found."""
    place = Place(process, num_processes, "127.0.0.1", port, "")
    with join(place, "run", "settings", SystemClock(), start_s=120.0, silent_s=60.0) as gang:
        built = programs(kind, mesh)
        built.warm_up([(4, training.WIDTH)], scored_dtypes=("float32",))
        state = built.init_state(tiny.params(CONFIGS[kind]))
        gang.barrier("compiled")
        state, stats = training.take_steps(built, state, training.batches(STEPS))
        gathering = Gathering(gang, built.abstract_state.params)
        gathered = gathering.start(state.params).result()
        gathering.close()
        checkpointer = Checkpointer(directory, durability="os", background=True, peers=gang)
        checkpointer.save(state, CURSOR)
        restored = checkpointer.restore_newest(built.abstract_state)
        checkpointer.close()
        assert restored is not None
        scored = built.logprobs(restored.state.params, built.place(training.ROWS))
        return Report(
            [float(step.grad_norm) for step in stats],
            float(np.asarray(scored, np.float64).sum()),
            "" if gathered is None else training.digest(gathered),
            (jax.local_device_count(), jax.device_count()),
        )


if __name__ == "__main__":
    number, processes, port = map(int, sys.argv[1:4])
    wanted = MeshSettings.model_validate_json(sys.argv[4])
    kind = next(name for name in get_args(Kind) if name == sys.argv[6])
    found = main(number, wanted, processes, port, Path(sys.argv[5]), kind)
    sys.stdout.write(msgspec.json.encode(found).decode())
