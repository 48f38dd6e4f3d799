from __future__ import annotations

import threading

import msgspec
import pytest

from forebay.clock import ManualClock
from forebay.errors import FencedError
from forebay.learner.feed import DynamicSampling, cause_of, describe
from forebay.objectives.dapo import has_signal
from forebay.staleness import Choice, OutstandingGroup
from forebay.store.accounting import count_lost
from forebay.telemetry.causes import CauseClock
from forebay.telemetry.residence import BatchStamps
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import act, make_dispatcher, make_feed, open_at, pack
from tests.unit.store.builders import make_trajectory

GO = threading.Event()


@pytest.fixture
def store():
    store = open_at()
    store.rewind(0)
    make_dispatcher(store, 0).top_up()
    return store


def test_a_batch_is_in_the_journal_before_it_is_handed_out(store) -> None:
    act(store)
    batch = make_feed(store, 0).next(0, GO)
    assert batch is not None
    assert batch.entry.group_ids == ("g0", "g1")
    assert (batch.entry.step, batch.entry.now) == (1, PolicyVersion(0, 0))
    assert store.journal() == (batch.entry,)
    assert [group.spec.group_id for group in batch.groups] == ["g0", "g1"]
    assert sum(update.counts.tokens for update in batch.updates) > 0


def test_a_batch_says_when_it_was_taken_and_recorded(store) -> None:
    act(store)
    clock = ManualClock(500.0)

    def pack_slowly(*arguments):
        clock.advance(2.0)
        return pack(*arguments)

    batch = make_feed(store, 0, pack=pack_slowly, clock=clock).next(0, GO)
    assert batch is not None
    assert batch.stamps == BatchStamps(taken_wall_s=500.0, taken_s=500.0, recorded_s=502.0)


def test_it_waits_until_it_is_stopped_and_says_for_what(store) -> None:
    stopping = threading.Event()
    feed = make_feed(store, 0)
    thread = threading.Timer(0.4, stopping.set)
    thread.start()
    assert feed.next(0, stopping) is None
    thread.join()
    assert feed.waits_for == "2 more settled groups"
    assert store.journal() == ()


def test_groups_without_a_fresh_token_are_rejected_by_name_and_posed_again(store) -> None:
    """Nothing in them was sampled: they can teach nothing, and must not stand in the way."""
    for slot in store.claim(4, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0)):
        store.put(make_trajectory(slot, version=None), slot)
    act(store)
    repeated: list[str] = []
    batch = make_feed(store, 0, repeated.append).next(0, GO)
    assert batch is not None
    assert batch.entry.group_ids == ("g2", "g3")
    assert repeated == ["g0", "g1"]
    counters = store.stats().counters
    assert counters["rejected.no_fresh_token"] == 2
    assert counters["trajectories.rejected.no_fresh_token"] == 4
    assert store.audit() == ()


def settle(store, rewards: list[float]) -> None:
    """Answer everything that can be claimed; member m of a group gets its reward from the list."""
    slots = store.claim(64, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0))
    for slot in slots:
        trajectory = make_trajectory(slot, version=PolicyVersion(0, 0))
        reward = rewards[int(slot.group_id[1:])] if slot.member else 0.0
        assert store.put(msgspec.structs.replace(trajectory, reward=reward), slot) == "accepted"


def sampling(max_dropped: int) -> DynamicSampling:
    return DynamicSampling(lambda group: has_signal([t.reward for t in group.trajectories]), max_dropped)


def test_dynamic_sampling_drops_groups_of_equal_rewards_and_takes_others(store) -> None:
    settle(store, [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    repeated: list[str] = []
    feed = make_feed(store, 0, repeated.append, sampling=sampling(4))
    batch = feed.next(0, GO)
    assert batch is not None
    assert batch.entry.group_ids == ("g1", "g3")
    assert repeated == []
    counters = store.stats().counters
    assert counters["rejected.no_signal"] == 2
    assert counters["trajectories.rejected.no_signal"] == 4
    assert store.audit() == ()
    assert count_lost(store.stats()) == 0
    following = feed.next(1, GO)
    assert following is not None
    assert following.entry.group_ids == ("g4", "g5")


def test_dynamic_sampling_trains_what_there_is_once_it_dropped_its_share(store) -> None:
    settle(store, [0.0] * 10)
    feed = make_feed(store, 0, sampling=sampling(3))
    batches = [feed.next(0, GO), feed.next(1, GO)]
    assert [batch.entry.group_ids for batch in batches if batch] == [("g3", "g4"), ("g8", "g9")]
    assert store.stats().counters["rejected.no_signal"] == 6
    assert count_lost(store.stats()) == 0


def test_dynamic_sampling_waits_for_others_and_says_so(store) -> None:
    settle(store, [0.0] * 9 + [1.0])
    stopping = threading.Event()
    feed = make_feed(store, 0, sampling=sampling(100))
    thread = threading.Timer(0.4, stopping.set)
    thread.start()
    assert feed.next(0, stopping) is None
    thread.join()
    assert feed.waits_for == "1 more settled groups, 9 having been dropped as their rewards were equal"
    assert store.journal() == ()
    assert make_dispatcher(store, 0).top_up() == 9


def test_a_stale_group_is_rejected_counted_and_posed_again(store) -> None:
    act(store)
    repeated: list[str] = []
    feed = make_feed(store, 0, repeated.append)
    batches = [feed.next(version, GO) for version in range(4)]  # max_staleness 4: ten groups were dispatched
    assert [batch.entry.step for batch in batches if batch] == [1, 2, 3, 4]
    make_dispatcher(store, 0).top_up()
    store.publish(PolicyVersion(0, 4), incarnation=0)
    make_dispatcher(store, 0).top_up()
    act(store, PolicyVersion(0, 4))
    batch = feed.next(5, GO)
    assert batch is not None
    assert repeated == ["g8", "g9"]
    assert store.stats().counters["rejected.stale"] == 2
    assert max(update.stats.staleness_max for update in batch.updates) <= 4


def test_a_learner_that_was_replaced_takes_nothing(store) -> None:
    act(store)
    feed = make_feed(store, 0)
    store.rewind(0)
    with pytest.raises(FencedError):
        feed.next(0, GO)
    assert store.journal() == ()


def test_c35_groups_of_an_older_incarnation_have_no_negative_lag(store) -> None:
    """Version 40 of a crashed learner counts as the fork's 38; so does everything sampled meanwhile."""
    act(store)
    feed = make_feed(store, 0)
    for version in range(3):
        feed.next(version, GO)
    store.publish(PolicyVersion(0, 3), incarnation=0)
    make_dispatcher(store, 0).top_up()
    act(store, PolicyVersion(0, 3))
    assert store.rewind(1).incarnation == 1
    store.truncate_journal(1, incarnation=1)
    batch = make_feed(store, 1).next(1, GO)
    assert batch is not None
    lags = []
    resumed = make_feed(store, 1)
    for version in range(2, 6):
        batch = resumed.next(version, GO)
        assert batch is not None
        lags.append(max(update.stats.staleness_max for update in batch.updates))
    # The last two groups were sampled by (0, 3), which stands for version 1, where the new incarnation began.
    assert lags == [2, 3, 4, 4]


def test_describe_names_the_urgent_group_first() -> None:
    assert describe(Choice(missing=2, urgent="g7")) == "urgent group g7"
    assert describe(Choice()) == "nothing"
    assert describe(Choice(missing=2), 8) == "2 more settled groups, the last 8 having had no fresh token"


def group(serial: int, *, settled: bool = False, begun: bool = False) -> OutstandingGroup:
    return OutstandingGroup(
        group_id=f"g{serial}",
        serial=serial,
        environment="calculator",
        settled=settled,
        start=PolicyVersion(0, 0) if settled or begun else None,
    )


@pytest.mark.parametrize(
    ("choice", "outstanding", "cause"),
    [
        (Choice(missing=2), [group(0, settled=True), group(1, begun=True), group(2, begun=True)], "episodes"),
        (Choice(missing=2), [group(0, begun=True), group(1)], "actors"),
        (Choice(missing=2), [group(0, settled=True), group(1, begun=True)], "credit"),
        (Choice(urgent="g0"), [group(0, begun=True)], "urgent"),
        (Choice(take=("g0",)), [group(0, settled=True)], "packing"),
    ],
)
def test_every_wait_has_a_cause(choice, outstanding, cause) -> None:
    assert cause_of(choice, outstanding) == cause


def test_the_feed_books_its_time_on_what_it_waits_for() -> None:
    clock = ManualClock()
    store = open_at()
    store.rewind(0)
    feed = make_feed(store, 0)
    feed.causes = CauseClock(clock, "episodes")
    clock.advance(1.0)
    stop_soon = threading.Event()
    threading.Timer(0.1, stop_soon.set).start()
    assert feed.next(0, stop_soon) is None
    clock.advance(2.0)
    assert feed.causes.read() == {"episodes": 1.0, "credit": 2.0}  # nothing was dispatched
    make_dispatcher(store, 0).top_up()
    act(store)
    assert feed.next(0, threading.Event()) is not None
    assert feed.causes.cause == "handover"
