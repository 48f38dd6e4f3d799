"""A run that was killed and resumed makes the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from forebay.errors import StoreError, WeightsError
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor, read_manifest, step_directory
from forebay.learner.loop import Learner
from forebay.learner.reference import Reference, ReferencePrograms, SavedState
from forebay.learner.reference_settings import ReferenceSettings
from forebay.learner.replay import replay, retrain
from forebay.store.rules import RuleStore
from forebay.telemetry.faults import POINTS
from forebay.trajectory import PolicyVersion
from tests.unit.learner import small_run
from tests.unit.models import tiny
from tests.unit.store.builders import FIRST

STEPS = 6
# Strong enough to bend every step.
HELD = small_run.OBJECTIVE.model_copy(update={"kl_coef": 20.0})


class Killed(Exception):
    """Stands for SIGKILL: nothing after it is done."""


class Process:
    """A learner process over a store, its weights a dictionary, its checkpoints real."""

    def __init__(
        self,
        store: RuleStore,
        checkpoints: Path,
        published: dict[PolicyVersion, str],
        dies: str,
        held_to: ReferenceSettings | None = None,
    ) -> None:
        self.store, self.published, self.dies = store, published, dies
        self.checkpointer = Checkpointer(checkpoints, durability="os")
        built = small_run.programs() if held_to is None else small_run.programs(HELD)
        made_with = None if held_to is None else reference_programs(held_to)
        template = SavedState(*built.abstract_state) if made_with is None else made_with.template
        restored = self.checkpointer.restore_newest(template)
        saved = restored.state if restored else None
        step = restored.cursor.version.version if restored else 0
        rewound = store.rewind(step)
        self.incarnation = rewound.incarnation
        version = PolicyVersion(self.incarnation, step)
        self.reference = None if made_with is None else Reference(made_with, tiny.params(), version, saved)
        self.learner = small_run.make_learner(
            version,
            state=saved.train_state if saved else None,
            publish=self.publish,
            save=self.save,
            checkpoint_every=2,
            built=built,
            annotators=() if self.reference is None else (self.reference,),
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
        saved = SavedState(*state) if self.reference is None else self.reference.saved_with(state)
        self.checkpointer.save(saved, CheckpointCursor(run_id="run", version=version))
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


@functools.cache
def reference_programs(settings: ReferenceSettings) -> ReferencePrograms:
    made_with = ReferencePrograms(small_run.programs(HELD), settings, "float32", 1)
    made_with.warm_up()
    return made_with


def new_learner(held_to: ReferenceSettings | None, **options) -> Learner:
    if held_to is None:
        return small_run.make_learner(**options)
    reference = Reference(reference_programs(held_to), tiny.params(), FIRST)
    return small_run.make_learner(built=small_run.programs(HELD), annotators=[reference], **options)


@functools.cache
def uninterrupted(held_to: ReferenceSettings | None = None) -> str:
    store = small_run.open_at()
    store.rewind(0)
    learner = new_learner(held_to, publish=lambda version, params: store.publish(version, incarnation=0))
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


@pytest.mark.parametrize(
    ("held_to", "dies", "origin"),
    [
        (ReferenceSettings(), "stepped", "source"),
        (ReferenceSettings(update_every=2), "stepped", "policy"),
        (ReferenceSettings(update_every=3), "checkpointed", "own"),
        (ReferenceSettings(update_every=1, update_share=0.25), "published", "own"),
    ],
    ids=["frozen", "copied-at-the-checkpoint", "copied-between", "averaged"],
)
def test_a_resumed_run_is_held_to_the_same_reference(
    tmp_path: Path, held_to: ReferenceSettings, dies: str, origin: str
) -> None:
    published: dict[PolicyVersion, str] = {}
    store = small_run.open_at(tmp_path / "store")
    with pytest.raises(Killed):
        Process(store, tmp_path / "checkpoints", published, dies, held_to).run()
    manifest = read_manifest(step_directory(tmp_path / "checkpoints", 4 if dies == "checkpointed" else 2))
    assert held_to.origin_at(manifest.cursor.version.version) == origin
    kept = any(record.path.startswith(".reference") for record in manifest.arrays)
    assert kept == (origin == "own")  # and nothing is kept twice
    store.close()
    store = small_run.open_at(tmp_path / "store")
    resumed = Process(store, tmp_path / "checkpoints", published, dies, held_to)
    resumed.run()
    assert resumed.digest() == uninterrupted(held_to)
    store.close()


def test_every_reference_makes_other_weights() -> None:
    references = [
        None,
        ReferenceSettings(),
        ReferenceSettings(update_every=2),
        ReferenceSettings(update_every=3),
        ReferenceSettings(update_every=1, update_share=0.25),
    ]
    assert len({uninterrupted(held_to) for held_to in references}) == len(references)


@pytest.mark.parametrize("held_to", [None, ReferenceSettings(update_every=2)], ids=["free", "held"])
def test_the_journal_replayed_from_stored_frames_gives_every_published_version(
    tmp_path: Path, held_to: ReferenceSettings | None
) -> None:
    published: dict[PolicyVersion, str] = {}
    store = small_run.open_at(tmp_path / "store")
    Process(store, tmp_path / "checkpoints", published, "never", held_to).run()
    again = new_learner(held_to)
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
