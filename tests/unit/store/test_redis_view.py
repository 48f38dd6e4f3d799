"""Looking into a store on a server, and what a look finds: damage, contradictions, strangers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, DamagedError, StoreError, StoreVersionError
from forebay.store import Store, StoreSettings, count_lost, open_store, view_store
from forebay.store.redis.packing import seal
from tests.redis_server import EVERYSEC, empty_server, needs_redis
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

redis = pytest.importorskip("redis")
pytestmark = needs_redis
PREFIX = f"forebay:{{{RUN}}}:"


@pytest.fixture
def settings() -> StoreSettings:
    return StoreSettings(engine="redis", url=empty_server(*EVERYSEC).url, durability="os")


@pytest.fixture
def client(settings: StoreSettings) -> Iterator[Any]:
    client = redis.Redis.from_url(settings.url)
    yield client
    client.close()


@pytest.fixture
def store(settings: StoreSettings) -> Iterator[Store]:
    """Three groups: recorded, settled, and one with a member that arrived and a lease about to end."""
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.rewind(0)
    store.dispatch([make_spec(i) for i in range(3)], incarnation=0)
    for slot in store.claim(6, ttl_s=10.0, actor="actor", version=FIRST)[:5]:
        store.put(make_trajectory(slot), slot)
    take(store)
    store.record(make_entry(1, ["g0"]), incarnation=0)
    yield store
    store.close()


def take(store: Store) -> list[str]:
    taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    return [group.spec.group_id for group in taken]


def test_looking_changes_nothing_and_settles_nothing(
    store: Store, settings: StoreSettings, client: Any
) -> None:
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    with view_store(settings, RUN, ManualClock(9999.0)) as view:
        stats = view.stats()
        assert (stats.leased_slots, stats.settled_groups, stats.retained_bytes > 0) == (1, 1, True)
        assert stats.live_by_environment == {"calculator": 2}
        assert [(group.group_id, group.state) for group in view.groups()] == [
            ("g0", "recorded"),
            ("g1", "settled"),
            ("g2", "open"),
        ]
        found = view.find_group("g2")
        assert found is not None
        assert [(member.state, member.actor) for member in found.members] == [
            ("arrived", "actor"),
            ("leased", "actor"),
        ]
        assert view.find_group("g9") is None
        assert [entry.step for entry in view.journal()] == [1]
        assert len(view.read_group("g1").trajectories) == 2
        assert (view.set_aside(), view.audit()) == ((), ())
        with pytest.raises(StoreError, match="holds no such group"):
            view.read_raw("g9")
    assert client.info("persistence")["rdb_changes_since_last_save"] == changes


def test_a_run_that_has_no_store_there_is_named(settings: StoreSettings) -> None:
    with pytest.raises(ConfigError, match=r"no store of run other on redis://127.0.0.1:\d+/0 yet"):
        view_store(settings, "other")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda frame: frame[: len(frame) // 2], "truncated"),
        (lambda frame: frame[:-3] + bytes([frame[-3] ^ 1]) + frame[-2:], "bad_checksum"),
        (lambda frame: b"nonsense" * 20, "bad_magic"),
    ],
)
def test_c61_a_damaged_frame_is_set_aside_and_the_run_goes_on(
    store: Store, settings: StoreSettings, client: Any, damage: Any, reason: str
) -> None:
    key = f"{PREFIX}p:g1:0"
    frame = damage(client.get(key))
    client.set(key, frame)
    taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    assert [(group.spec.group_id, len(group.trajectories)) for group in taken] == [("g1", 1)]
    stats = store.stats()
    corrupt = {name: count for name, count in stats.counters.items() if name.startswith("corrupt.")}
    assert corrupt == {f"corrupt.{reason}": 1}
    assert stats.counters["trajectories.rejected.corrupt"] == 1
    assert count_lost(stats) == 0
    with view_store(settings, RUN) as view:
        (aside,) = view.set_aside()
    assert (aside.group_id, aside.member, aside.frame) == ("g1", 0, frame)
    assert store.audit() == ()


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"format": 1, "forks": b"\x90", "begun": 1, "recorded_step": 7}, f"format 1, run {RUN}"),
        ({"format": "?"}, rf"format \?, run {RUN}"),
        ({"run_id": "other"}, "format 2, run other"),
    ],
)
def test_a_store_of_another_format_or_run_is_refused_and_not_touched(
    settings: StoreSettings, client: Any, changes: dict[str, Any], got: str
) -> None:
    client.hset(f"{PREFIX}meta", mapping={"format": 2, "run_id": RUN} | changes)
    before = client.hgetall(f"{PREFIX}meta")
    for look in (open_store, view_store):
        with pytest.raises(StoreVersionError, match=rf"got {got}, limit format 2, run {RUN}.*not touched"):
            look(settings, RUN)
    assert client.hgetall(f"{PREFIX}meta") == before
    assert client.keys() == [f"{PREFIX}meta".encode()]


def test_keys_of_another_kind_under_the_name_of_a_run_are_named(settings: StoreSettings, client: Any) -> None:
    client.set(f"{PREFIX}meta", "something")
    with pytest.raises(StoreError, match="holds keys that are not its own"):
        open_store(settings, RUN)


def test_a_count_that_is_no_number_is_damaged(store: Store, client: Any) -> None:
    store.dispatch([make_spec(3)], incarnation=0)
    (slot,) = store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)
    client.hset(f"{PREFIX}counters", "accepted", "1:")
    for call in (store.stats, store.audit, lambda: store.put(make_trajectory(slot), slot)):
        with pytest.raises(DamagedError, match=r"count.* is damaged"):
            call()


def miscount_leases(client: Any) -> None:
    """Write totals that are whole, and wrong."""
    raw = client.hget(f"{PREFIX}meta", "totals")
    totals = list(struct.unpack(f">{len(raw) // 8 - 2}d", raw[:-16]))
    totals[14] += 1
    body = struct.pack(f">{len(totals)}d", *totals)
    client.hset(f"{PREFIX}meta", "totals", seal(f"{PREFIX}meta", body))


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (miscount_leases, "totals"),
        (lambda client: client.hincrby(f"{PREFIX}counters", "accepted", 1), "lost"),
        (lambda client: client.delete(f"{PREFIX}p:g1:0"), "missing or torn: g1/0"),
        (lambda client: client.delete(f"{PREFIX}g:g1"), "missing or torn: g1"),
        (
            lambda client: (
                client.zrem(f"{PREFIX}claimable", "g2") or client.zadd(f"{PREFIX}claimable", {"g1": 1})
            ),
            "claimable",
        ),
        (lambda client: client.zrem(f"{PREFIX}order", "g1"), "order"),
        (lambda client: client.zadd(f"{PREFIX}due", {"g2": 1}), "due"),
        (lambda client: client.hdel(f"{PREFIX}entries", 1), "journal"),
        (lambda client: client.set(f"{PREFIX}p:g7:0", "orphan"), "a key that nothing accounts for: p:g7:0"),
    ],
)
def test_an_audit_names_each_contradiction(store: Store, client: Any, tamper: Any, said: str) -> None:
    assert store.audit() == ()
    tamper(client)
    assert any(problem.startswith(said) for problem in store.audit()), store.audit()


def test_a_group_without_a_free_member_among_those_to_claim_is_named(store: Store, client: Any) -> None:
    client.zadd(f"{PREFIX}claimable", {"g1": 1})
    with pytest.raises(DamagedError, match="a group without a free member: g1"):
        store.claim(1, ttl_s=10.0, actor="actor", version=FIRST)
