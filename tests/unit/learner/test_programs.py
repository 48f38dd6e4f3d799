from __future__ import annotations

import jax
import numpy as np
import pytest

from forebay.errors import ConfigError
from forebay.learner.programs import Compiled, TrainPrograms, log_compiled
from forebay.learner.train_step import snapshot
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import build_objective
from tests.numerics import training
from tests.unit.models import tiny


def test_an_unplanned_shape_is_refused_instead_of_compiled() -> None:
    built = training.programs()
    rows = built.place(tiny.train_rows([[4], [5]], 16))
    with pytest.raises(
        ConfigError, match=r"no compiled accumulate program .*\(got \(2, 16\), limit \[\(4, 24\)\]"
    ):
        built.accumulate(built.init_state(tiny.params()).params, built.zeros(), rows, 1.0)
    assert built.shapes == ((4, training.WIDTH),)


def test_rows_that_the_mesh_cannot_split_are_refused() -> None:
    mesh = make_mesh(MeshSettings(data=2, fsdp=2))
    built = TrainPrograms(tiny.CONFIG, mesh, training.OPTIMIZER, build_objective(ObjectiveSettings()))
    with pytest.raises(ConfigError, match=r"6 rows x 24 tokens .* multiple of data x fsdp x expert = 4"):
        built.warm_up([(6, 24)])


@pytest.mark.parametrize("kind", ["splash", "fused"])
def test_attention_that_the_devices_cannot_run_is_refused_before_anything_is_compiled(kind: str) -> None:
    compute = ComputeSettings.model_validate({"attention": kind})
    with pytest.raises(ConfigError, match=rf'compute\.attention="{kind}" .*\(got cpu, limit .pu'):
        TrainPrograms(
            tiny.CONFIG,
            make_mesh(MeshSettings()),
            training.OPTIMIZER,
            build_objective(ObjectiveSettings()),
            compute,
        )


def test_programs_are_named_and_compiled_once() -> None:
    built = training.programs()
    assert built.warm_up([]) == ("accumulate[4, 24]", "logprobs[4, 24]", "apply")


def test_warm_up_tells_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    built = training.programs()
    told: list[Compiled] = []
    built.warm_up([(4, training.WIDTH)], scored_dtypes=("float32",), told=told.append)
    assert [(done.name, done.number, done.total) for done in told] == [
        ("accumulate[4, 24]", 1, 3),
        ("logprobs[4, 24]", 2, 3),
        ("apply", 3, 3),
    ]
    with caplog.at_level("INFO", "forebay"):
        log_compiled(Compiled("apply", 3, 7, 4.14))
    assert caplog.messages == ["compiled 3 of 7 programs: apply, 4.1 s"]


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_step_that_is_not_finite_updates_nothing(poison: str) -> None:
    built = training.programs()
    state, _ = training.take_steps(built, built.init_state(tiny.params()), training.batches(1))
    before = training.digest(state)
    accumulator = built.accumulate(state.params, built.zeros(), built.place(training.ROWS), 1.0)
    if poison == "loss":
        sums = accumulator.sums._replace(loss=accumulator.sums.loss * np.inf)
        accumulator = accumulator._replace(sums=sums)
    else:
        broken = accumulator.gradients["embedding"].at[3, 3].set(np.nan)
        accumulator = accumulator._replace(gradients={**accumulator.gradients, "embedding": broken})
    state, accumulator, stats = built.apply(state, accumulator)
    assert not stats.finite
    assert stats.update_norm == 0
    assert training.digest(state) == before
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(accumulator))
    state, stats = training.take_steps(built, state, training.batches(1))
    assert stats[0].finite
    assert int(state.step) == 2


def test_step_stats() -> None:
    built = training.programs()
    start = built.init_state(tiny.params())
    before = snapshot(start.params)
    state, (stats,) = training.take_steps(built, start, training.batches(1))
    change = jax.tree.map(np.subtract, snapshot(state.params), before)
    norm = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in jax.tree.leaves(change)))
    np.testing.assert_allclose(stats.update_norm, norm, rtol=1e-4)
    warm_up = training.OPTIMIZER.learning_rate / 2  # half-way through two steps of warm-up
    np.testing.assert_allclose(stats.learning_rate, warm_up)
    assert stats.sums.tokens == training.ROWS.loss_mask.sum()
    assert int(state.step) == 1


def test_c51_a_snapshot_survives_donated_steps() -> None:
    built = training.programs()
    state = built.init_state(tiny.params())
    published = snapshot(state.params)
    before, kept = training.digest(published), state.params
    state, _ = training.take_steps(built, state, training.batches(3))
    assert training.digest(published) == before
    assert training.digest(state.params) != before
    assert all(isinstance(leaf, np.ndarray) and leaf.base is None for leaf in jax.tree.leaves(published))
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(kept))


def test_the_initial_parameters_are_copied() -> None:
    built = training.programs()
    given = jax.tree.map(np.array, tiny.params())
    before = training.digest(given)
    training.take_steps(built, built.init_state(given), training.batches(1))
    assert training.digest(given) == before
