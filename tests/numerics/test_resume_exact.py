"""A run that was killed and resumed makes the same weights, bit for bit, as one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import StoreError, WeightsError
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.replay import replay, retrain
from forebay.store.rules import RuleStore
from forebay.telemetry.faults import POINTS
from forebay.trajectory import PolicyVersion
from tests.unit.learner import small_run

STEPS = 6


class Killed(Exception):
    """Stands for SIGKILL: nothing after it is done."""


class Process:
    """A learner process over a store, its weights a dictionary, its checkpoints real."""

    def __init__(
        self, store: RuleStore, checkpoints: Path, published: dict[PolicyVersion, str], dies: str
    ) -> None:
        self.store, self.published, self.dies = store, published, dies
        self.checkpointer = Checkpointer(checkpoints, durability="os")
        restored = self.checkpointer.restore_newest(small_run.programs().abstract_state)
        step = restored.cursor.version.version if restored else 0
        rewound = store.rewind(step)
        self.incarnation = rewound.incarnation
        self.learner = small_run.make_learner(
            PolicyVersion(self.incarnation, step),
            state=restored.state if restored else None,
            publish=self.publish,
            save=self.save,
            checkpoint_every=2,
        )
        self.replayed = replay(
            store,
            rewound.journal,
            self.incarnation,
            small_run.pack,
            self.learner.train,
            lambda made: [published[v] for v in published if v.version == made.version],
            self.digest,
        )

    def digest(self) -> str:
        return small_run.digest(self.learner.state)

    def publish(self, version: PolicyVersion, params) -> None:
        self.die("stepped", version)
        self.published[version] = self.digest()
        self.die("weights_visible", version)
        self.store.publish(version, incarnation=self.incarnation)
        self.die("published", version)

    def save(self, state, version: PolicyVersion) -> None:
        self.checkpointer.save(state, CheckpointCursor(run_id="run", version=version))
        self.die("checkpointed", version)

    def die(self, point: str, version: PolicyVersion) -> None:
        if self.dies == point and self.incarnation == 0 and version.version >= 3:
            raise Killed

    def run(self) -> None:
        source = small_run.ScriptedSource(self.store, self.incarnation, self.learner.version.version, STEPS)

        class Dying:
            def next(dying):
                batch = source.next()
                self.die("recorded", PolicyVersion(self.incarnation, batch.entry.step))
                return batch

        self.learner.run(Dying(), STEPS, lambda: False)


def uninterrupted() -> str:
    store = small_run.open_at()
    store.rewind(0)
    learner = small_run.make_learner(publish=lambda version, params: store.publish(version, incarnation=0))
    learner.run(small_run.ScriptedSource(store, 0, 0, STEPS), STEPS, lambda: False)
    return small_run.digest(learner.state)


@pytest.mark.parametrize("dies", ["recorded", "stepped", "weights_visible", "published", "checkpointed"])
def test_resumed_equals_uninterrupted(tmp_path: Path, dies: str) -> None:
    assert dies in POINTS
    published: dict[PolicyVersion, str] = {}
    store = small_run.open_at(tmp_path / "store")
    with pytest.raises(Killed):
        Process(store, tmp_path / "checkpoints", published, dies).run()
    store.close()
    store = small_run.open_at(tmp_path / "store")
    resumed = Process(store, tmp_path / "checkpoints", published, dies)
    # Checkpoints come every two steps, and the kill at step 3 or, of the checkpoint itself, 4.
    assert resumed.replayed == (0 if dies == "checkpointed" else 1)
    resumed.run()
    assert resumed.digest() == uninterrupted()
    assert resumed.learner.version == PolicyVersion(1, STEPS)
    groups = [group_id for entry in store.journal() for group_id in entry.group_ids]
    assert len(groups) == len(set(groups)) == STEPS * small_run.BATCHING.groups
    assert store.audit() == ()
    # Re-made versions are the ones that were published, so that their tokens keep their version.
    made_again = 3 if dies in ("weights_visible", "published") else 2 if dies != "checkpointed" else 4
    assert store.stats().forks[-1].version == made_again
    store.close()


def test_the_journal_replayed_from_stored_frames_gives_every_published_version(tmp_path: Path) -> None:
    published: dict[PolicyVersion, str] = {}
    store = small_run.open_at(tmp_path / "store")
    Process(store, tmp_path / "checkpoints", published, "never").run()
    again = small_run.make_learner()
    done = retrain(
        store.journal(),
        store.read_group,
        small_run.pack,
        again.train,
        published,
        lambda: small_run.digest(again.state),
    )
    assert (done.version, done.batches) == (STEPS, STEPS)
    assert done.compared == tuple(PolicyVersion(0, step) for step in range(1, STEPS + 1))
    assert len(set(published.values())) == STEPS  # so that equality says something
    store.close()


def test_replay_names_the_first_version_that_differs_and_refuses_a_journal_with_a_hole(
    tmp_path: Path,
) -> None:
    published: dict[PolicyVersion, str] = {}
    store = small_run.open_at(tmp_path / "store")
    Process(store, tmp_path / "checkpoints", published, "never").run()
    wrong = published | {PolicyVersion(0, 2): "0" * 32, PolicyVersion(0, 4): "1" * 32}
    again = small_run.make_learner()

    def run(journal, digests):
        return retrain(
            journal,
            store.read_group,
            small_run.pack,
            again.train,
            digests,
            lambda: small_run.digest(again.state),
        )

    with pytest.raises(WeightsError, match=r"other weights than \(0, 2\)"):
        run(store.journal(), wrong)
    with pytest.raises(StoreError, match="does not hold every batch"):
        run(store.journal()[1:], {})
    store.close()
