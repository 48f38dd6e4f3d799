from __future__ import annotations

import functools

import jax
import numpy as np

from forebay.learner.annotations import ProximalLogprobs
from forebay.learner.programs import TrainPrograms
from forebay.learner.reference import Reference, ReferencePrograms
from forebay.learner.reference_settings import ReferenceSettings
from forebay.models.compiles import CompileCounter
from forebay.models.logprobs import token_logprobs
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective
from forebay.trajectory import PolicyVersion
from tests.numerics import training
from tests.unit.learner import small_run
from tests.unit.models import tiny
from tests.unit.store.builders import FIRST

HELD = small_run.OBJECTIVE.model_copy(update={"kl_coef": 20.0})
OTHER = tiny.params(seed=1)


@functools.cache
def made_with(settings: ReferenceSettings, updates_per_batch: int = 1) -> ReferencePrograms:
    made = ReferencePrograms(small_run.programs(HELD), settings, "float32", updates_per_batch)
    made.warm_up()
    return made


def reference(settings: ReferenceSettings, source=OTHER, **more) -> Reference:
    return Reference(made_with(settings, **more), source, FIRST)


def batches(count: int) -> list:
    store = small_run.open_at()
    store.rewind(0)
    source = small_run.ScriptedSource(store, 0, 0, count)
    taken = []
    for version in range(1, count + 1):
        taken.append(source.next())
        store.publish(PolicyVersion(0, version), incarnation=0)
    return taken


@jax.jit
def model_logprobs(params, *rows):
    return token_logprobs(params, tiny.CONFIG, *rows)[0]


def logprobs_of(params, rows) -> np.ndarray:
    """Of the model as it is, without the learner's programs."""
    given = (rows.tokens, rows.segment_ids, rows.positions, rows.temperature)
    return np.asarray(model_logprobs(params, *given))


def held(one: Reference, state, batch) -> np.ndarray:
    update = one.annotate(state.params, batch.updates)[0]
    return np.asarray(update.micro_batches[0].rows.reference_logprobs)


def moved(built: TrainPrograms, steps: int = 2):
    """A policy that has left its beginning, and its host parameters."""
    state = built.init_state(tiny.params())
    accumulator = built.zeros()
    rows = built.place(built.stand_in(batches(1)[0].updates[0].micro_batches[0].rows))
    for _ in range(steps):
        accumulator = built.accumulate(state.params, accumulator, rows, 1.0)
        state, accumulator, _ = built.apply(state, accumulator)
    return state


def test_it_writes_the_logprobs_of_its_own_parameters() -> None:
    (batch,) = batches(1)
    rows = batch.updates[0].micro_batches[0].rows
    state = small_run.programs(HELD).init_state(tiny.params())
    got = held(reference(ReferenceSettings()), state, batch)
    np.testing.assert_allclose(got, logprobs_of(OTHER, rows), rtol=1e-4, atol=1e-5)
    assert np.abs(got - logprobs_of(tiny.params(), rows)).max() > 0.1


def test_it_is_updated_in_its_rhythm_and_keeps_its_numbers_when_the_policy_goes_on() -> None:
    built = small_run.programs(HELD)
    (batch,) = batches(1)
    rows = batch.updates[0].micro_batches[0].rows
    one = reference(ReferenceSettings(update_every=2), updates_per_batch=3)
    state = moved(built)
    params = jax.device_get(state.params)
    one.trained(state.params, PolicyVersion(0, 3))
    np.testing.assert_allclose(held(one, state, batch), logprobs_of(OTHER, rows), rtol=1e-4, atol=1e-5)
    one.trained(state.params, PolicyVersion(0, 6))
    assert one.saved_with(state).reference is None  # a checkpoint of this moment holds the policy already
    accumulator = built.accumulate(state.params, built.zeros(), built.place(built.stand_in(rows)), 1.0)
    state, _, _ = built.apply(state, accumulator)  # which overwrites the policy that was copied
    np.testing.assert_allclose(held(one, state, batch), logprobs_of(params, rows), rtol=1e-4, atol=1e-5)
    one.trained(state.params, PolicyVersion(0, 9))
    kept = jax.device_get(one.saved_with(state).reference)
    np.testing.assert_array_equal(kept["embedding"], params["embedding"])


def test_a_moving_average_goes_its_share_of_the_way() -> None:
    built = small_run.programs(HELD)
    state = moved(built)
    one = reference(ReferenceSettings(update_every=1, update_share=0.25))
    one.trained(state.params, PolicyVersion(0, 1))
    got = jax.device_get(one.saved_with(state).reference)
    wanted = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * np.asarray(new), OTHER, state.params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(got):
        expected = dict(jax.tree_util.tree_leaves_with_path(wanted))[path]
        np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-6)


def test_the_policy_before_the_batch_is_not_kept_twice_and_equals_the_proximal_policy() -> None:
    built = small_run.programs(HELD)
    (batch,) = batches(1)
    one = reference(ReferenceSettings(update_every=1), updates_per_batch=2)
    state = moved(built)
    one.trained(state.params, PolicyVersion(0, 2))
    assert one.saved_with(state).reference is None
    proximal = ProximalLogprobs(built).annotate(state.params, batch.updates)[0].micro_batches[0].rows
    np.testing.assert_array_equal(held(one, state, batch), np.asarray(proximal.proximal_logprobs))


def test_c53_a_reference_compiles_nothing_after_the_warm_up_also_when_it_moves() -> None:
    taken = batches(4)
    one = reference(ReferenceSettings(update_every=2))
    learner = small_run.make_learner(built=small_run.programs(HELD), annotators=(one,))
    with CompileCounter() as compiles:
        compiles.mark_warm()
        for batch in taken:
            learner.train(batch)
        assert compiles.since_warm() == 0


def test_the_penalty_keeps_the_policy_near() -> None:
    taken = batches(6)
    rows = taken[0].updates[0].micro_batches[0].rows

    def distance(objective, annotators) -> float:
        ledger = small_run.Ledger()
        built = small_run.programs(objective)
        learner = small_run.make_learner(built=built, annotators=annotators, account=ledger)
        for batch in taken * 10:
            learner.train(batch)
        gaps = logprobs_of(jax.device_get(learner.state.params), rows) - logprobs_of(tiny.params(), rows)
        return float((np.expm1(-gaps) + gaps)[rows.loss_mask].mean())

    near = distance(HELD, (reference(ReferenceSettings(), tiny.params()),))
    free = distance(small_run.OBJECTIVE, ())
    assert 0 < near < free / 2, (near, free)


def test_held_in_the_computing_type_it_says_the_same_and_takes_half_the_memory() -> None:
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(MeshSettings()),
        training.OPTIMIZER,
        build_objective(HELD),
        ComputeSettings(compute_dtype="bfloat16"),
        annotations_of(HELD),
    )
    names = built.warm_up([(2, 16)], scored_dtypes=("float32", "bfloat16"))
    assert names == ("accumulate[2, 16]", "logprobs[2, 16]", "logprobs_bfloat16[2, 16]", "apply")
    rows = tiny.train_rows([[8, 5], [16]], 16)
    said = []
    for dtype in ("float32", "bfloat16"):
        made = ReferencePrograms(built, ReferenceSettings(dtype=dtype), dtype, 1)
        params = Reference(made, OTHER, FIRST).params
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) == made.dtype.itemsize * sum(
            leaf.size for leaf in jax.tree.leaves(OTHER)
        )
        said.append(np.asarray(built.logprobs(params, built.place(rows))))
    np.testing.assert_array_equal(*said)
