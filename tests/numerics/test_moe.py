"""A model with experts: the same numbers however experts, rows and widths are split over devices."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest

from forebay.batching.rows import TrainRows, map_rows
from forebay.errors import ConfigError
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import Accumulator
from forebay.models.experts import Experts
from forebay.models.router_loss import RouterLoss, router_measures
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective
from tests.numerics import training
from tests.unit.models import tiny

CONFIG = dataclasses.replace(tiny.CONFIG, family="mixtral", experts=Experts(8, 2, 16))
OF_ROUTERS = RouterLoss(balance=0.5, z=0.1)
NUM_TOKENS = int(np.count_nonzero(training.ROWS.segment_ids))
# Adam with a tiny epsilon turns the rounding of the gradients of rarely chosen experts into whole steps.
OPTIMIZER = training.OPTIMIZER.model_copy(update={"epsilon": 1e-4})
MESHES = [
    MeshSettings(fsdp=2, tensor=2, expert=2),
    MeshSettings(tensor=2, expert=4),
    MeshSettings(context=2, expert=2, data=2),
]


@functools.cache
def programs(mesh: MeshSettings = training.SINGLE) -> TrainPrograms:
    built = TrainPrograms(
        CONFIG,
        make_mesh(mesh),
        OPTIMIZER,
        build_objective(training.OBJECTIVE),
        training.COMPUTE,
        annotations_of(training.OBJECTIVE),
        of_routers=OF_ROUTERS,
    )
    built.warm_up([(4, training.WIDTH)])
    return built


def gradients(built: TrainPrograms, parts: list[TrainRows]) -> Accumulator:
    state, accumulator = built.init_state(tiny.params(CONFIG)), built.zeros()
    for rows in parts:
        accumulator = built.accumulate(
            state.params, accumulator, built.place(rows), training.DENOMINATOR, NUM_TOKENS
        )
    return accumulator


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_sharded_experts_equal_a_single_device(mesh: MeshSettings) -> None:
    single, sharded = programs(), programs(mesh)
    expected, got = gradients(single, [training.ROWS]), gradients(sharded, [training.ROWS])
    np.testing.assert_allclose(got.sums.loss, expected.sums.loss, rtol=1e-5)
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    for name, value, reference in zip(got.routed._fields, got.routed, expected.routed, strict=True):
        if name != "spilled":
            np.testing.assert_allclose(value, reference, rtol=1e-5, err_msg=name)
    updated = [
        built.apply(built.init_state(tiny.params(CONFIG)), sums)[0]
        for built, sums in ((sharded, got), (single, expected))
    ]
    assert training.relative_error(updated[0].params, updated[1].params) <= 1e-5


def test_every_expert_and_router_is_trained() -> None:
    layers = gradients(programs(), [training.ROWS]).gradients["layers"]
    for name in ("router", "expert_gate", "expert_up", "expert_down"):
        assert (np.abs(np.asarray(layers[name])).reshape(CONFIG.num_layers, -1).max(axis=1) > 0).all(), name


def test_micro_batches_count_by_their_tokens() -> None:
    """Two micro-batches of the same rows are the same as one, and twice the rows are the same batch twice."""
    built = programs()
    whole = gradients(built, [training.ROWS])
    half = map_rows(lambda rows: np.concatenate([rows[:2], np.zeros_like(rows[:2])]), training.ROWS)
    rest = map_rows(lambda rows: np.concatenate([rows[2:], np.zeros_like(rows[2:])]), training.ROWS)
    cut = gradients(built, [half, rest])
    np.testing.assert_allclose(cut.routed.assigned, whole.routed.assigned)
    np.testing.assert_allclose(cut.routed.probability, whole.routed.probability, rtol=1e-5)
    np.testing.assert_allclose(cut.sums.loss, whole.sums.loss, rtol=1e-5)
    twice = gradients(built, [training.ROWS, training.ROWS])
    doubled = jax.tree.map(lambda leaf: 2 * np.asarray(leaf), whole.gradients)
    assert training.relative_error(twice.gradients, doubled) <= 1e-6


def test_a_loss_of_routers_without_its_denominator_is_refused() -> None:
    built = programs()
    state = built.init_state(tiny.params(CONFIG))
    with pytest.raises(ConfigError, match="num_tokens"):
        built.accumulate(state.params, built.zeros(), built.place(training.ROWS), training.DENOMINATOR)


def test_measures_say_how_even_the_routing_is() -> None:
    measured = router_measures(jax.device_get(gradients(programs(), [training.ROWS]).routed))
    assert 1.0 <= measured["imbalance"] <= measured["imbalance_max"] <= 8.0
    assert 0.0 < measured["entropy"] < np.log(8)
    assert measured["balance_loss"] > CONFIG.experts.per_token * 0.9
    assert measured["spilled"] == 0.0
