"""A state that was saved on one mesh is restored on another, bit for bit."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from forebay.learner.checkpoint import Checkpointer, load_step
from forebay.learner.checkpoint_manifest import CheckpointCursor, read_manifest, step_directory
from forebay.learner.checkpoint_places import open_shelf
from forebay.learner.programs import TrainPrograms
from forebay.learner.settings import LearnerSettings
from forebay.learner.train_step import TrainState, snapshot
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import build_objective
from forebay.trajectory import PolicyVersion
from tests.bucket_server import make_bucket, needs_buckets
from tests.numerics import training
from tests.unit.models import tiny

CURSOR = CheckpointCursor(run_id="run", version=PolicyVersion(0, 3))
SAVED_ON = MeshSettings(fsdp=4)
RESTORED_ON = [MeshSettings(fsdp=2, tensor=2), MeshSettings(), MeshSettings(data=2, fsdp=2), SAVED_ON]


@functools.cache
def template(mesh: MeshSettings) -> TrainState:
    built = TrainPrograms(
        tiny.CONFIG, make_mesh(mesh), training.OPTIMIZER, build_objective(training.OBJECTIVE)
    )
    return built.abstract_state


def state_on(mesh: MeshSettings) -> TrainState:
    """Return a state in which every number of every array is another one."""
    rng = np.random.default_rng(3)

    def drawn(leaf: Any) -> jax.Array:
        values = rng.standard_normal(leaf.shape) if leaf.shape else np.array(7)
        return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

    return jax.tree.map(drawn, template(mesh))


@pytest.mark.parametrize("mesh", RESTORED_ON, ids=str)
@pytest.mark.parametrize("background", [False, True], ids=["inline", "background"])
def test_a_state_of_four_shards_comes_back_on_any_mesh(
    tmp_path: Path, mesh: MeshSettings, background: bool
) -> None:
    checkpointer = Checkpointer(tmp_path, durability="os", background=background)
    saved = state_on(SAVED_ON)
    checkpointer.save(saved, CURSOR)
    restored = checkpointer.restore_newest(template(mesh))
    checkpointer.close()
    assert restored is not None
    assert jax.tree.map(lambda leaf: leaf.sharding, restored.state) == jax.tree.map(
        lambda leaf: leaf.sharding, template(mesh)
    )
    assert training.digest(restored.state) == training.digest(saved)
    slices = read_manifest(step_directory(tmp_path, 3)).slices
    assert max(sum(part.array == one.array for part in slices) for one in slices) == 4


@needs_buckets
def test_a_state_of_four_shards_comes_back_from_a_bucket_on_another_mesh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, saved = make_bucket().use(monkeypatch), state_on(SAVED_ON)
    shelf = open_shelf(LearnerSettings(checkpoint_path=bucket.url), Path("unused"), "run")
    with contextlib.closing(Checkpointer(shelf, background=True)) as checkpointer:
        checkpointer.save(saved, CURSOR)
        restored = checkpointer.restore_newest(template(MeshSettings(fsdp=2, tensor=2)))
    assert restored is not None
    assert training.digest(restored.state) == training.digest(saved)


def test_parameters_alone_are_read_from_the_checkpoint_of_a_mesh(tmp_path: Path) -> None:
    Checkpointer(tmp_path, durability="os").save(state_on(SAVED_ON), CURSOR)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), template(SAVED_ON).params
    )
    params = load_step(tmp_path, 3, TrainState(shapes, None, None), part=True).state.params
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    assert training.digest(params) == training.digest(snapshot(state_on(SAVED_ON).params))
