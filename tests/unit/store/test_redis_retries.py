"""A connection that breaks after the server has acted: every verb is sent twice and done once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from forebay.clock import ManualClock
from forebay.errors import StoreError
from forebay.store import Slot, Store, StoreSettings, open_store
from forebay.trajectory import PolicyVersion
from tests.lossy_proxy import LossyProxy
from tests.redis_server import EVERYSEC, empty_server, needs_redis, shared_server
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

redis = pytest.importorskip("redis")
pytestmark = needs_redis


@pytest.fixture
def proxy() -> Iterator[LossyProxy]:
    with LossyProxy(empty_server(*EVERYSEC).port) as proxy:
        yield proxy


def open_at(url: str, **settings: Any) -> Store:
    return open_store(
        StoreSettings(engine="redis", url=url, durability="os", **settings), RUN, ManualClock(start_s=1000.0)
    )


@pytest.fixture
def store(proxy: LossyProxy) -> Iterator[Store]:
    store = open_at(proxy.url)
    yield store
    assert store.audit() == ()
    store.close()


def claim(store: Store, num: int = 100) -> tuple[Slot, ...]:
    return store.claim(num, ttl_s=10.0, actor="actor", version=FIRST)


def prepare(store: Store) -> dict[str, Any]:
    """Bring a store to where every verb has something to do; return what the verbs are called with."""
    store.rewind(0)
    store.dispatch([make_spec(i) for i in range(8)], incarnation=0)
    slots = claim(store, 12)
    for slot in slots[:10]:
        store.put(make_trajectory(slot), slot)
    taken, _ = store.take(incarnation=0, choose=oldest_first(4), timeout_s=0.0)
    names = [group.spec.group_id for group in taken]
    store.record(make_entry(1, names[:1]), incarnation=0)
    return {"slots": slots, "names": names}


def take(store: Store) -> list[str]:
    taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    return [group.spec.group_id for group in taken]


VERBS: dict[str, Callable[[Store, dict[str, Any]], object]] = {
    "claim": lambda s, has: [msgspec.to_builtins(slot) for slot in claim(s, 3)],
    "heartbeat": lambda s, has: len(s.heartbeat(has["slots"], ttl_s=5.0)),
    "fail": lambda s, has: s.fail(has["slots"][10], reason="crash"),
    "release_slot": lambda s, has: s.release_slot(has["slots"][10]),
    "dispatch": lambda s, has: s.dispatch([make_spec(8), make_spec(9)], incarnation=0),
    "take": lambda s, has: take(s),
    "record": lambda s, has: s.record(make_entry(2, has["names"][1:2]), incarnation=0),
    "reject": lambda s, has: s.reject(
        has["names"][1], incarnation=0, reason="stale", replacement=make_spec(8, group_id="again")
    ),
    "release": lambda s, has: s.release(has["names"][1], incarnation=0),
    "publish": lambda s, has: s.publish(PolicyVersion(0, 1), incarnation=0),
    "commit": lambda s, has: s.commit(1, incarnation=0),
    "rewind": lambda s, has: msgspec.to_builtins(s.rewind(0)),
    "advance_fork": lambda s, has: s.advance_fork(1, incarnation=0),
    "truncate_journal": lambda s, has: s.truncate_journal(0, incarnation=0),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_answer_is_lost_is_done_once(proxy: LossyProxy, verb: str) -> None:
    """The outcome, and every total, are those of a store whose connection never breaks."""
    expected = open_at(proxy.url)
    answer, has = None, prepare(expected)
    answer = VERBS[verb](expected, has)
    wanted = expected.stats(), list(expected.scan())
    expected.close()
    empty_server(*EVERYSEC)

    store = open_at(proxy.url)
    has = prepare(store)
    proxy.lose_answers(1)
    assert VERBS[verb](store, has) == answer
    assert proxy.lost == 1
    assert (store.stats(), list(store.scan())) == wanted
    assert store.audit() == ()
    store.close()


def test_a_put_whose_answer_is_lost_is_stored_once(store: Store, proxy: LossyProxy) -> None:
    """Sent again it is a duplicate: for its actor as good as accepted."""
    store.dispatch([make_spec(0)], incarnation=0)
    slot, known = claim(store)
    store.put(make_trajectory(known), known)  # from now on the server has the script
    proxy.lose_answers(1)
    assert store.put(make_trajectory(slot), slot) == "duplicate"
    assert store.stats().counters["trajectories.accepted"] == 2
    assert store.stats().stored_trajectories == 2


def test_a_released_slot_that_somebody_else_holds_is_not_released_again(
    store: Store, proxy: LossyProxy
) -> None:
    """The second time comes after another actor has claimed the member, with the same attempt."""
    store.dispatch([make_spec(0, group_size=1)], incarnation=0)
    (slot,) = claim(store)
    other = open_at(shared_server(*EVERYSEC).url)
    proxy.lose_answers(1)
    claimed: list[Slot] = []
    original = proxy._loses

    def claim_between() -> bool:
        loses = original()
        if loses:
            claimed.extend(claim(other))
        return loses

    proxy._loses = claim_between  # type: ignore[method-assign]
    store.release_slot(slot)
    assert [mine.member for mine in claimed] == [0]
    assert store.stats().leased_slots == 1
    other.close()


def test_a_frame_that_was_sent_twice_leaves_nothing_behind(store: Store, proxy: LossyProxy) -> None:
    store.dispatch([make_spec(i, group_size=1) for i in range(4)], incarnation=0)
    slots = claim(store)
    store.put(make_trajectory(slots[0]), slots[0])
    for slot in slots[1:]:
        proxy.lose_answers(1)
        store.put(make_trajectory(slot), slot)
    assert store.stats().settled_groups == 4
    server = redis.Redis.from_url(shared_server(*EVERYSEC).url)
    assert list(server.scan_iter(f"forebay:{{{RUN}}}:s:*")) == []
    server.close()


def test_a_server_that_is_away_is_an_error_with_its_cause_at_the_deadline() -> None:
    with LossyProxy(empty_server(*EVERYSEC).port) as proxy:
        store = open_at(proxy.url, deadline_s=0.3)
        proxy.lose_answers(10_000)
        with pytest.raises(
            StoreError, match=r"server redis://127.0.0.1:\d+/0 is away: Connection .*tries in"
        ):
            store.stats()
        proxy.lose_answers(0)
        assert store.stats().run_id == RUN
        store.close()
