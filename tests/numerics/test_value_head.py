"""The value head is trained by the same numbers however the work is cut, and leaves the model's own alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.batching.rows import TrainRows, map_rows
from forebay.errors import ConfigError
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import Accumulator, TrainState
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.models.transformer import forward
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective, build_value_loss
from forebay.objectives.value_settings import ValueSettings
from tests.numerics import training
from tests.unit.models import tiny

OBJECTIVE = training.OBJECTIVE.model_copy(update={"advantage": "gae"})
VALUE = ValueSettings(coef=0.7, clip=0.5)
EIGHT = MeshSettings(fsdp=2, context=2, tensor=2)
WIDTH = training.WIDTH


def annotated(rows: TrainRows) -> TrainRows:
    rng = np.random.default_rng(8)
    values, targets = (rng.normal(size=rows.tokens.shape).astype(np.float32) for _ in range(2))
    return rows._replace(values=values, value_targets=targets)


ROWS = annotated(training.ROWS)


@functools.cache
def programs(mesh: MeshSettings = training.SINGLE) -> TrainPrograms:
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(mesh),
        training.OPTIMIZER,
        build_objective(OBJECTIVE),
        training.COMPUTE,
        annotations_of(OBJECTIVE),
        build_value_loss(OBJECTIVE, VALUE),
    )
    built.warm_up([(4, WIDTH)])
    return built


def with_head(built: TrainPrograms) -> TrainState:
    """Return a state whose head says something."""
    rng = np.random.default_rng(3)
    state = built.init_state(tiny.params())
    head = {
        "value_head": rng.normal(0, 0.3, tiny.CONFIG.hidden_size).astype(np.float32),
        "value_bias": np.float32(0.25),
    }
    placed = {
        name: jax.device_put(value, built.abstract_state.params[name].sharding)
        for name, value in head.items()
    }
    return state._replace(params={**state.params, **placed})


def gradients(built: TrainPrograms, state: TrainState, rows: list[TrainRows]) -> Accumulator:
    accumulator = built.zeros()
    for part in rows:
        accumulator = built.accumulate(state.params, accumulator, built.place(part), training.DENOMINATOR)
    return accumulator


def test_sharded_equals_single_device() -> None:
    single, sharded = programs(), programs(EIGHT)
    expected, got = (gradients(built, with_head(built), [ROWS]) for built in (single, sharded))
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    np.testing.assert_allclose(got.sums.value_loss, expected.sums.value_loss, rtol=1e-5)
    values = [
        np.asarray(built.values(with_head(built).params, built.place(ROWS))) for built in (single, sharded)
    ]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-5)
    head = programs(EIGHT).init_state(tiny.params()).params["value_head"]
    assert head.addressable_shards[0].data.size == head.size // 2  # split over fsdp, as a norm


def test_packed_equals_unpacked() -> None:
    alone = []
    for row, lengths in enumerate(training.LENGTHS):
        start = 0
        for length in lengths:
            piece = map_rows(
                lambda source, row=row, start=start, length=length: np.pad(
                    source[row, start : start + length], (0, WIDTH - length)
                ),
                ROWS,
            )
            alone.append(piece._replace(segment_ids=(piece.segment_ids > 0).astype(np.int32)))
            start += length
    blank = map_rows(np.zeros_like, alone[0])
    alone += [blank] * (-len(alone) % 4)
    unpacked = [
        TrainRows(*map(_stacked, zip(*alone[at : at + 4], strict=True))) for at in range(0, len(alone), 4)
    ]
    expected = gradients(programs(), with_head(programs()), [ROWS])
    got = gradients(programs(), with_head(programs()), unpacked)
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    np.testing.assert_allclose(got.sums.value_loss, expected.sums.value_loss, rtol=1e-5)


def _stacked(arrays: tuple[np.ndarray | None, ...]) -> np.ndarray | None:
    return None if arrays[0] is None else np.stack(arrays)


def test_the_heads_gradient_is_that_of_the_squared_error_in_the_hidden_states() -> None:
    """By hand, in float64: a value is read one position before its token; the clip holds some back."""
    state = with_head(programs())
    hidden = np.asarray(
        forward(
            state.params, tiny.CONFIG, *map(jnp.asarray, (ROWS.tokens, ROWS.segment_ids, ROWS.positions))
        ),
        np.float64,
    )
    weight = np.asarray(state.params["value_head"], np.float64)
    expected_weight, expected_bias, loss = np.zeros_like(weight), 0.0, 0.0
    num_held = 0
    for row, column in np.argwhere(ROWS.loss_mask):
        at = hidden[row, column - 1]
        value = at @ weight + 0.25
        old, target = float(ROWS.values[row, column]), float(ROWS.value_targets[row, column])
        near = min(max(value, old - VALUE.clip), old + VALUE.clip)
        held = (near - target) ** 2 > (value - target) ** 2
        num_held += held
        loss += VALUE.coef * max((value - target) ** 2, (near - target) ** 2) / 2
        if not held:
            expected_weight += VALUE.coef * (value - target) * at
            expected_bias += VALUE.coef * (value - target)
    got = gradients(programs(), state, [ROWS])
    assert 0 < num_held < ROWS.loss_mask.sum()
    np.testing.assert_allclose(got.sums.value_loss, loss / training.DENOMINATOR, rtol=1e-5)
    np.testing.assert_allclose(
        got.gradients["value_head"], expected_weight / training.DENOMINATOR, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        got.gradients["value_bias"], expected_bias / training.DENOMINATOR, rtol=1e-4, atol=1e-6
    )


def test_a_new_head_sends_nothing_into_the_model() -> None:
    built, without = programs(), training.programs()
    got = gradients(built, built.init_state(tiny.params()), [ROWS])
    expected = gradients(without, without.init_state(tiny.params()), [training.ROWS])
    own = {name: leaf for name, leaf in got.gradients.items() if not name.startswith("value_")}
    assert training.relative_error(own, expected.gradients) <= 1e-6
    assert np.abs(got.gradients["value_head"]).max() > 0
    np.testing.assert_allclose(got.sums.loss, expected.sums.loss, rtol=1e-6)


def test_rejected_tokens_train_the_critic_too() -> None:
    """A sequence too far from the policy teaches it nothing, but its return is what it is."""
    far = ROWS._replace(behavior_logprobs=np.full_like(ROWS.behavior_logprobs, -60.0))
    got = gradients(programs(), with_head(programs()), [far])
    assert got.sums.rejected_tokens == got.sums.tokens > 0
    near = gradients(programs(), with_head(programs()), [ROWS])
    np.testing.assert_allclose(got.sums.value_loss, near.sums.value_loss, rtol=1e-6)


def test_a_value_that_is_not_finite_leaves_everything_as_it_was() -> None:
    built = programs()
    state = with_head(built)
    before = training.digest(state)
    broken = ROWS._replace(value_targets=np.full_like(ROWS.value_targets, np.nan))
    state, stats = training.take_steps(built, state, [[broken]])
    assert not stats[0].finite
    assert training.digest(state) == before


@pytest.mark.parametrize("advantage", ["vtrace", "group_mean"])
def test_which_rows_a_step_needs_follows_from_the_objective(advantage: str) -> None:
    settings = ObjectiveSettings(advantage=advantage)
    needed = {"values", "value_targets"} if advantage == "vtrace" else set()
    assert annotations_of(settings) == needed
    assert (build_value_loss(settings, VALUE) is None) == (not needed)


def test_without_a_critic_there_is_no_program_for_values() -> None:
    built = training.programs()
    with pytest.raises(ConfigError, match="no compiled values program"):
        built.values({}, ROWS)
