"""Where siblings do not wait for one another, a killed and resumed run still makes the same weights."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import msgspec
import pytest

from forebay.learner.dispatch import Dispatcher
from forebay.learner.feed import Feed, JournaledBatch
from forebay.learner.replay import retrain
from forebay.learner.siblings import FinishedSiblings, decode_families
from forebay.objectives.advantages import by_group, leave_one_out
from forebay.objectives.siblings import among_siblings
from forebay.staleness import parse_part
from forebay.store.accounting import count_lost
from forebay.store.protocol import Slot
from forebay.store.rules import RuleStore
from forebay.trajectory import PolicyVersion, Task
from tests.numerics.test_resume_exact import STEPS, Killed, Process
from tests.unit.learner import small_run
from tests.unit.store.builders import make_spec

PACK = small_run.pack
TASKS = 2  # of a batch
GROUP_SIZE = 4
HOUR_S = 3600.0


class Rule:
    """One value of `objective.siblings`, and the actors that answer under it.

    Args:
        size: Members of a part.
    """

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, GROUP_SIZE // size
        self.groups = TASKS * self.parts
        self._working: list[Slot] = []
        self._num_claimed = 0

    def pack(self, groups, now, forks, packing=b""):
        advantage = by_group(leave_one_out)
        if self.size == 1:
            names = [group.spec.group_id for group in groups]
            advantage = among_siblings(advantage, names, list(decode_families(packing).values()))
        return PACK(groups, now, forks, advantage=advantage)

    def source(self, store: RuleStore, incarnation: int, first: int, last: int) -> Parted:
        return Parted(self, store, incarnation, first, last)

    def act(self, store: RuleStore, step: int) -> None:
        """Answer the tasks of the next batch but the last part of each, which takes two steps longer.

        The actors survive the learner, and what they work on.
        """
        published = store.stats().published
        begun = store.claim(
            (step + 3) * TASKS * GROUP_SIZE - self._num_claimed,
            ttl_s=HOUR_S,
            actor="scripted",
            version=published,
        )
        self._num_claimed += len(begun)
        self._working += begun
        for slot in tuple(self._working):
            serial, part = parse_part(slot.group_id)
            if serial // self.groups + 2 * (part == self.parts - 1) <= step + 1:
                self._working.remove(slot)
                version = PolicyVersion(slot.min_version.incarnation, slot.min_version.version)
                assert store.put(small_run.answer(slot, version), slot) == "accepted"


class Parted:
    """Dispatches parts, lets actors answer some, and takes."""

    def __init__(self, rule: Rule, store: RuleStore, incarnation: int, first: int, last: int) -> None:
        self._rule, self._store, self._version = rule, store, first
        self._stopping = threading.Event()
        # More than the run trains: what is finished last of all needs no place of its own.
        self._dispatcher = Dispatcher(
            store, incarnation, self._make_group, small_run.STALENESS, rule.groups, 1, 100, parts=rule.parts
        )
        siblings = FinishedSiblings(1, store.read_group, store.journal(), 64) if rule.size == 1 else None
        self._feed = Feed(
            store, incarnation, store.stats().forks, rule.pack, small_run.STALENESS, rule.groups, 1,
            self._dispatcher.repeat, siblings=siblings,
        )  # fmt: skip

    def next(self) -> JournaledBatch | None:
        self._dispatcher.top_up()
        self._rule.act(self._store, self._version)
        batch = self._feed.next(self._version, self._stopping)
        self._version += 1
        return batch

    def _make_group(self, serial, posed, min_version):
        spec = make_spec(serial, group_size=self._rule.size, min_version=min_version, deadline_s=HOUR_S)
        return msgspec.structs.replace(spec, task=posed) if isinstance(posed, Task) else spec


@functools.cache
def never_killed(size: int) -> str:
    store = small_run.open_at()
    store.rewind(0)
    learner = small_run.make_learner(publish=lambda version, params: store.publish(version, incarnation=0))
    learner.run(Rule(size).source(store, 0, 0, STEPS), STEPS, lambda: False)
    return small_run.digest(learner.state)


@pytest.fixture
def use(monkeypatch):
    """Let processes train by a rule."""

    def apply(rule: Rule) -> None:
        monkeypatch.setattr(small_run, "pack", rule.pack)
        monkeypatch.setattr(small_run, "ScriptedSource", rule.source)

    return apply


def test_finished_siblings_and_pairs_make_different_weights() -> None:
    assert never_killed(1) != never_killed(2)


@pytest.mark.parametrize(
    ("size", "dies"), [(1, "recorded"), (1, "weights_visible"), (1, "published"), (2, "published")]
)
def test_resumed_equals_uninterrupted(use, tmp_path: Path, size: int, dies: str) -> None:
    published: dict[PolicyVersion, str] = {}
    rule = Rule(size)
    use(rule)
    store = small_run.open_at(tmp_path / "store")
    with pytest.raises(Killed):
        Process(store, tmp_path / "checkpoints", published, dies).run()
    store.close()
    store = small_run.open_at(tmp_path / "store")
    resumed = Process(store, tmp_path / "checkpoints", published, dies)
    assert resumed.replayed == 1
    resumed.run()
    assert resumed.digest() == never_killed(size)
    groups = [group_id for entry in store.journal() for group_id in entry.group_ids]
    assert len(groups) == len(set(groups)) == STEPS * rule.groups
    assert store.audit() == () and count_lost(store.stats()) == 0
    store.close()


def test_the_journal_keeps_the_siblings_that_were_trained_before(use, tmp_path: Path) -> None:
    published: dict[PolicyVersion, str] = {}
    rule = Rule(1)
    store = small_run.open_at(tmp_path / "store")
    use(rule)
    Process(store, tmp_path / "checkpoints", published, "never").run()
    elsewhere = [
        {name for family in decode_families(entry.packing).values() for name in family} - {*entry.group_ids}
        for entry in store.journal()
    ]
    trained = [group_id for entry in store.journal() for group_id in entry.group_ids]
    assert any(names & set(trained) for names in elsewhere), "the run compares across batches"
    again = small_run.make_learner()
    done = retrain(
        store.journal(),
        store.read_group,
        rule.pack,
        again.train,
        published,
        lambda: small_run.digest(again.state),
    )
    assert (done.version, done.batches, len(done.compared)) == (STEPS, STEPS, STEPS)
    store.close()
