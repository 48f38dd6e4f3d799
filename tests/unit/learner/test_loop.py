from __future__ import annotations

import math

import jax
import msgspec
import numpy as np
import pytest

from forebay.errors import NonFiniteError
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import (
    Ledger,
    ScriptedSource,
    digest,
    host,
    make_learner,
    open_at,
)


@pytest.fixture
def store():
    store = open_at()
    store.rewind(0)
    return store


class Calls:
    """What the loop published and saved, and what the weights were then."""

    def __init__(self, store) -> None:
        self.store = store
        self.published: list[PolicyVersion] = []
        self.saved: list[PolicyVersion] = []
        self.params: list = []

    def publish(self, version, params) -> None:
        self.published.append(version)
        self.params.append(params)
        self.store.publish(version, incarnation=0)

    def save(self, state, version) -> None:
        assert int(state.step) == version.version
        self.saved.append(version)


def run(store, steps: int, last: int | None = None, ended=lambda: False, **settings):
    calls, ledger = Calls(store), Ledger()
    learner = make_learner(account=ledger, publish=calls.publish, save=calls.save, steps=steps, **settings)
    learner.run(ScriptedSource(store, 0, 0, last or steps), last or steps, ended)
    return learner, calls, ledger


def versions(*numbers: int) -> list[PolicyVersion]:
    return [PolicyVersion(0, number) for number in numbers]


def test_it_publishes_and_saves_in_its_rhythm_and_the_last_version_always(store) -> None:
    learner, calls, ledger = run(store, 5, publish_every=2, checkpoint_every=2)
    assert learner.version == PolicyVersion(0, 5)
    assert calls.published == versions(2, 4, 5)
    assert calls.saved == versions(2, 4)
    assert ledger.versions == versions(1, 2, 3, 4, 5)
    assert [batch.entry.step for batch in ledger.batches] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("steps", [1, 2])
def test_c84_a_run_shorter_than_the_window_publishes_its_last_version(store, steps: int) -> None:
    _, calls, _ = run(store, steps)
    assert calls.published[-1] == PolicyVersion(0, steps)
    assert store.stats().outstanding == 0
    assert store.stats().next_serial == 2 * steps


def test_published_parameters_are_copies_that_no_later_step_changes(store) -> None:
    learner, calls, _ = run(store, 2)
    first, second = (
        params["embed"] if "embed" in params else next(iter(params.values())) for params in calls.params
    )
    leaves = [np.asarray(leaf) for leaf in (first, second)]
    assert leaves[0].shape == leaves[1].shape
    assert not np.array_equal(leaves[0], leaves[1])
    assert learner.version.version == 2


def test_it_ends_when_told_after_the_batch_at_hand(store) -> None:
    ledger = Ledger()
    learner = make_learner(account=ledger, publish=lambda version, _: store.publish(version, incarnation=0))
    learner.run(ScriptedSource(store, 0, 0, 9), 9, lambda: len(ledger.batches) == 3)
    assert learner.version == PolicyVersion(0, 3)


def test_it_ends_when_the_source_has_dried_up() -> None:
    class Dry:
        def next(self):
            return None

    learner = make_learner()
    learner.run(Dry(), 9, lambda: False)
    assert learner.version == PolicyVersion(0, 0)


def test_a_step_that_is_not_finite_changes_nothing_and_three_in_a_row_end_the_run(store) -> None:
    ledger = Ledger()
    learner = make_learner(account=ledger, max_nonfinite_steps=3)
    source = ScriptedSource(store, 0, 0, 9)
    before = digest(learner.state)
    for _ in range(2):
        learner.train(poisoned(source.next()))
    assert digest(learner.state) == before
    assert int(host(learner.state).step) == 0
    assert learner.version == PolicyVersion(0, 2)
    learner.train(source.next())  # a good one in between: the count begins anew
    assert digest(learner.state) != before
    for _ in range(2):
        learner.train(poisoned(source.next()))
    store.publish(PolicyVersion(0, 5), incarnation=0)
    with pytest.raises(NonFiniteError, match="3 batches in a row"):
        learner.train(poisoned(source.next()))
    assert [bool(step.finite) for stats in ledger.stats for step in stats] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def poisoned(batch):
    """Return the batch with an infinite advantage."""
    update = batch.updates[0]
    micro = update.micro_batches[0]
    advantages = np.where(micro.rows.loss_mask, np.float32(math.inf), micro.rows.advantages)
    rows = micro.rows._replace(advantages=advantages.astype(np.float32))
    changed = msgspec.structs.replace(
        update, micro_batches=(micro._replace(rows=rows), *update.micro_batches[1:])
    )
    return batch._replace(updates=(changed,))


def test_at_most_sixteen_programs_of_a_step_are_under_way(store, monkeypatch) -> None:
    learner, _, _ = run(store, 1)
    batch = ScriptedSource(store, 0, 1, 2).next()
    update = batch.updates[0]
    many = msgspec.structs.replace(update, micro_batches=update.micro_batches[:1] * 40)
    under_way, most = 0, []
    accumulate, waited = learner.programs.accumulate, jax.block_until_ready

    def dispatch(*arguments):
        nonlocal under_way
        under_way += 1
        most.append(under_way)
        return accumulate(*arguments)

    def wait(tree):
        nonlocal under_way
        under_way = 0
        return waited(tree)

    monkeypatch.setattr(learner.programs, "accumulate", dispatch)
    monkeypatch.setattr(jax, "block_until_ready", wait)
    learner.train(batch._replace(updates=(many,)))
    assert (max(most), len(most)) == (16, 40)
