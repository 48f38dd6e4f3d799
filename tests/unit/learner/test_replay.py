from __future__ import annotations

import threading

import pytest

from forebay.learner.replay import remake, replay
from forebay.store import count_lost
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import act, make_dispatcher, make_feed, open_at, pack
from tests.unit.store.frames import KeptFrames


@pytest.fixture
def store():
    """A store whose learner journaled steps 1 to 3 and died."""
    store = open_at()
    store.rewind(0)
    make_dispatcher(store, 0).top_up()
    act(store)
    feed = make_feed(store, 0)
    for version in range(3):
        feed.next(version, threading.Event())
    return store


def resume(store, step: int = 0, pack=pack, published=None):
    rewound = store.rewind(step)
    trained: list = []
    count = replay(
        store,
        rewound.journal,
        rewound.incarnation,
        pack,
        trained.append,
        lambda made: [d for v, d in (published or {}).items() if v.version == made.version],
        lambda: f"digest {trained[-1].entry.step}",
    )
    return count, trained


def test_every_batch_after_the_checkpoint_is_trained_again_in_order(store) -> None:
    journal = store.journal()
    count, trained = resume(store, 1)
    assert count == 2
    assert [batch.entry for batch in trained] == list(journal[1:])
    assert store.stats().counters["replayed"] == 2
    assert store.journal() == journal


def test_a_batch_is_made_again_from_the_stored_frames(store) -> None:
    entry = store.journal()[0]
    once, again = (remake(entry, store.read_group, pack) for _ in range(2))
    assert once.updates[0].digest == again.updates[0].digest
    assert [group.spec.group_id for group in again.groups] == ["g0", "g1"]
    assert again.stamps is None  # its trajectories have lived already


def test_the_fork_moves_to_what_was_made_again_exactly(store, caplog) -> None:
    published = {
        PolicyVersion(0, 1): "digest 1",
        PolicyVersion(0, 2): "digest 2",
        PolicyVersion(0, 3): "other",
    }
    count, _ = resume(store, published=published)
    assert count == 3
    assert store.stats().forks[-1].version == 2
    assert "step 3 was trained again and made other weights" in caplog.text


def test_versions_published_by_a_learner_that_only_replayed_them_count(store) -> None:
    """Incarnation 1 re-made and published steps 1 to 3, and died: what it published keeps its version."""
    resume(store)
    count, _ = resume(store, published={PolicyVersion(1, 3): "digest 3"})
    assert count == 3
    assert [fork.version for fork in store.stats().forks] == [3, 3]


def test_a_learner_that_died_before_it_replayed_leaves_no_fork_behind(store) -> None:
    store.rewind(0)
    resume(store, published={PolicyVersion(0, 3): "digest 3"})
    assert [(fork.incarnation, fork.version) for fork in store.stats().forks] == [(1, 3), (2, 3)]


def test_forks_before_a_batch_was_taken_anew_stay(store) -> None:
    store.rewind(1)
    store.truncate_journal(1, incarnation=1)
    make_feed(store, 1).next(1, threading.Event())
    resume(store, 1, published={PolicyVersion(0, 2): "other", PolicyVersion(1, 2): "digest 2"})
    assert [(fork.incarnation, fork.version) for fork in store.stats().forks] == [(1, 1), (2, 1)]
    resume(store, 1, published={PolicyVersion(1, 2): "digest 2"})
    assert [(fork.incarnation, fork.version) for fork in store.stats().forks] == [(1, 1), (2, 2), (3, 2)]


def test_versions_that_are_gone_leave_the_fork_where_it_is(store) -> None:
    resume(store)
    assert store.stats().forks[-1].version == 0


def test_a_batch_that_cannot_be_made_again_gives_itself_and_the_rest_back(store, caplog) -> None:
    entries = store.journal()

    def other_packing(groups, now, forks, packing):
        return pack(groups if now.version == 0 else groups[::-1], now, forks)

    count, trained = resume(store, pack=other_packing)
    assert (count, len(trained)) == (1, 1)
    assert "step 2 of the journal cannot be made again exactly" in caplog.text
    assert store.journal() == entries[:1]
    stats = store.stats()
    assert stats.counters["trajectories.unrecorded"] == 8
    assert store.audit() == ()
    batch = make_feed(store, 1).next(1, threading.Event())
    assert batch is not None
    assert batch.entry.group_ids == entries[1].group_ids
    assert batch.entry.now == PolicyVersion(1, 1)


def test_c75_a_batch_with_a_damaged_frame_is_taken_anew_without_it(store, caplog) -> None:
    entries = store.journal()
    frames = KeptFrames(store, None)
    damaged = entries[1].group_ids[0]
    frames.write(damaged, 1, frames.read(damaged, 1)[:-1])
    count, trained = resume(store)
    assert (count, len(trained)) == (1, 1)
    assert "step 2 of the journal cannot be made again exactly (member 1 of group" in caplog.text
    assert store.journal() == entries[:1]
    batch = make_feed(store, 1).next(1, threading.Event())
    assert batch is not None
    assert batch.entry.group_ids == entries[1].group_ids
    assert [len(group.trajectories) for group in batch.groups] == [1, 2]
    counters = store.stats().counters
    assert (counters["corrupt.truncated"], counters["trajectories.rejected.corrupt"]) == (1, 1)
    assert count_lost(store.stats()) == 0
    assert store.audit() == ()


def test_a_second_crash_in_the_middle_of_a_replay_starts_it_again(store) -> None:
    rewound = store.rewind(0)
    store.record(rewound.journal[0], incarnation=1)
    count, trained = resume(store)
    assert (count, len(trained)) == (3, 3)
    assert store.stats().incarnation == 2
