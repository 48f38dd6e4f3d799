"""What a server that dies, forgets, fills up or is replaced does to a store."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import StoreError
from forebay.staleness import Choice
from forebay.store import Store, StoreSettings, count_lost, open_store
from tests.redis_server import ALWAYS, EVERYSEC, RedisServer, has_waitaof, needs_redis
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

redis = pytest.importorskip("redis")
pytestmark = needs_redis


def settings(server: RedisServer, **changes: Any) -> StoreSettings:
    return StoreSettings(**{"engine": "redis", "url": server.url, "deadline_s": 20.0} | changes)


def take(store: Store, num: int = 1, *, incarnation: int = 0) -> list[str]:
    taken, _ = store.take(incarnation=incarnation, choose=oldest_first(num), timeout_s=0.0)
    return [group.spec.group_id for group in taken]


def put_all(store: Store, num: int = 100, **trajectory: Any) -> list[str]:
    slots = store.claim(num, ttl_s=600.0, actor="actor", version=FIRST)
    return [store.put(make_trajectory(slot, **trajectory), slot) for slot in slots]


@pytest.fixture
def always(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", *ALWAYS) as server:
        yield server


def test_what_was_acknowledged_survives_kills_of_the_server(always: RedisServer) -> None:
    """Four writers go on through three kills; every trajectory that was acknowledged can be read back."""
    store = open_store(settings(always), RUN)
    store.rewind(0)
    store.dispatch([make_spec(i, group_size=4) for i in range(60)], incarnation=0)
    acknowledged: list[str] = []
    progress = threading.Semaphore(0)

    def write() -> None:
        mine = open_store(settings(always), RUN)
        while slots := mine.claim(5, ttl_s=600.0, actor="writer", version=FIRST):
            for slot in slots:
                trajectory = make_trajectory(slot, num_tokens=200)
                if mine.put(trajectory, slot) in ("accepted", "duplicate"):
                    acknowledged.append(trajectory.trajectory_id)
                    progress.release()
        mine.close()

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for _ in range(3):
        for _ in range(50):
            progress.acquire()
        always.restart()
    for writer in writers:
        writer.join()
    groups = [store.read_group(group.group_id) for group in store.scan()]
    stored = {trajectory.trajectory_id for group in groups for trajectory in group.trajectories}
    assert set(acknowledged) == stored
    assert len(acknowledged) == len(stored) == 240
    assert count_lost(store.stats()) == 0
    assert store.audit() == ()
    store.close()


@pytest.fixture
def rewindable(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", *EVERYSEC) as server:
        yield server


def go_back(server: RedisServer, saved: Path) -> None:
    """Give the server the files that it had earlier, as a crash within the last second does."""
    server.kill()
    shutil.rmtree(server.directory / "appendonlydir")
    shutil.copytree(saved, server.directory / "appendonlydir")
    server.start()


def save(server: RedisServer, saved: Path) -> None:
    server.stop()
    shutil.copytree(server.directory / "appendonlydir", saved)
    server.start()


def test_a_learner_whose_recorded_step_is_gone_stops(rewindable: RedisServer, tmp_path: Path) -> None:
    store = open_store(settings(rewindable, durability="os"), RUN)
    store.rewind(0)
    store.dispatch([make_spec(i) for i in range(3)], incarnation=0)
    put_all(store)
    store.record(make_entry(1, take(store)), incarnation=0)
    names = take(store)
    save(rewindable, tmp_path / "saved")
    store.record(make_entry(2, names), incarnation=0)
    go_back(rewindable, tmp_path / "saved")
    lost = r"went back in time.*\(got recorded up to step 1, limit step 2\).*checkpoint of step 1 or earlier"
    for verb in (
        lambda: take(store),
        lambda: store.record(make_entry(3, names), incarnation=0),
        lambda: store.commit(1, incarnation=0),
        lambda: store.dispatch([make_spec(3)], incarnation=0),
    ):
        with pytest.raises(StoreError, match=lost):
            verb()
    # Nor may a learner go on from a checkpoint that holds what the store has lost.
    with pytest.raises(StoreError, match=r"newer than the store's journal.*got step 2, limit recorded up to"):
        store.rewind(2)
    rewound = store.rewind(0)
    assert [entry.step for entry in rewound.journal] == [1]
    store.record(rewound.journal[0], incarnation=1)
    assert take(store, incarnation=1) == names
    store.close()


def test_a_server_that_lost_everything_is_not_taken_for_a_new_one(always: RedisServer) -> None:
    store = open_store(settings(always), RUN)
    store.dispatch([make_spec(0)], incarnation=0)
    slot = store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)[0]
    always.kill()
    shutil.rmtree(always.directory / "appendonlydir")
    always.start()
    for verb in (lambda: store.put(make_trajectory(slot), slot), store.stats, lambda: store.rewind(0)):
        with pytest.raises(StoreError, match="has no record of this run"):
            verb()
    store.close()


def test_a_full_server_refuses_what_grows_and_nothing_that_frees(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", *EVERYSEC, "maxmemory 8mb") as server:
        store = open_store(settings(server, durability="os"), RUN)
        store.rewind(0)
        store.dispatch([make_spec(i, group_size=1) for i in range(20)], incarnation=0)
        slots = store.claim(20, ttl_s=600.0, actor="actor", version=FIRST)
        trajectories = [make_trajectory(slot, num_tokens=150_000) for slot in slots]
        stored, refusal = 0, ""
        for slot, trajectory in zip(slots, trajectories, strict=True):
            try:
                store.put(trajectory, slot)
            except StoreError as error:
                refusal = str(error)
                break
            stored += 1
        assert re.match(r"the memory of the store's server .* is full: put was refused", refusal)
        assert 0 < stored < 20
        assert store.audit() == ()
        names = take(store, stored)
        store.record(make_entry(1, names), incarnation=0)
        store.commit(1, incarnation=0)
        assert store.put(trajectories[stored], slots[stored]) == "accepted"
        assert count_lost(store.stats()) == 0
        assert store.audit() == ()
        store.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica."""
    with (
        RedisServer(tmp_path / "primary", *ALWAYS, "repl-diskless-sync-delay 0") as primary,
        RedisServer(tmp_path / "replica", *ALWAYS, f"replicaof 127.0.0.1 {primary.port}") as replica,
    ):
        yield primary, replica


def promote(replica: RedisServer) -> None:
    client = redis.Redis.from_url(replica.url)
    client.replicaof("NO", "ONE")
    client.close()


def cut_off_replicas(primary: RedisServer) -> None:
    client = redis.Redis.from_url(primary.url)
    client.client_kill_filter(_type="replica")
    client.close()


def wait_for_replica(primary: RedisServer) -> None:
    client = redis.Redis.from_url(primary.url, socket_timeout=60.0)
    client.set("probe", 1)
    if has_waitaof():  # a replica keeps its append-only file only some time after it has the data
        assert client.execute_command("WAITAOF", 1, 1, 30_000) == [1, 1]
    else:
        assert client.wait(1, 30_000) == 1
    client.delete("probe")
    client.close()


class TestReplicas:
    def test_a_write_that_no_replica_has_is_not_acknowledged(
        self, pair: tuple[RedisServer, RedisServer]
    ) -> None:
        primary, replica = pair
        wait_for_replica(primary)
        store = open_store(settings(primary, min_replicas=1, replica_timeout_s=0.3), RUN)
        store.dispatch([make_spec(0, group_size=2)], incarnation=0)
        slots = store.claim(2, ttl_s=600.0, actor="actor", version=FIRST)
        assert store.put(make_trajectory(slots[0]), slots[0]) == "accepted"
        replica.suspend()
        for _ in range(2):
            # Not the second time either, when it is a duplicate on a primary that is about to be lost.
            with pytest.raises(StoreError, match=r"too few replicas .*got 0 after 0.3 s, limit store.min_r"):
                store.put(make_trajectory(slots[1]), slots[1])
        replica.resume()
        wait_for_replica(primary)
        assert store.put(make_trajectory(slots[1]), slots[1]) == "duplicate"
        primary.kill()
        promote(replica)
        after = open_store(settings(replica), RUN)
        assert len(after.read_group("g0").trajectories) == 2
        assert after.audit() == ()
        store.close()
        after.close()

    def test_without_them_a_fail_over_may_lose_what_was_acknowledged_and_the_learner_stops(
        self, pair: tuple[RedisServer, RedisServer]
    ) -> None:
        primary, replica = pair
        wait_for_replica(primary)
        store = open_store(settings(primary), RUN)
        store.rewind(0)
        store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
        put_all(store)
        store.record(make_entry(1, take(store)), incarnation=0)
        wait_for_replica(primary)
        replica.suspend()
        cut_off_replicas(primary)  # or its socket would keep what it has not read
        store.record(make_entry(2, take(store)), incarnation=0)
        primary.kill()
        store.close()
        replica.resume()
        promote(replica)
        after = open_store(settings(replica), RUN)
        assert [entry.step for entry in after.journal()] == [1]
        with pytest.raises(StoreError, match="the checkpoint is newer than the store's journal"):
            after.rewind(2)
        assert after.rewind(1).incarnation == 1
        assert take(after, incarnation=1) == ["g1"]
        assert after.audit() == ()
        after.close()

    def test_a_replica_is_not_written_to(self, pair: tuple[RedisServer, RedisServer]) -> None:
        primary, replica = pair
        wait_for_replica(primary)
        with pytest.raises(StoreError, match="is a replica and takes no writes"):
            open_store(settings(replica, deadline_s=0.2), RUN)


def test_a_choice_over_several_pages_is_of_one_moment(always: RedisServer) -> None:
    """While the learner reads the second page another process changes the store; it chooses again."""
    store, other = open_store(settings(always), RUN), open_store(settings(always), RUN)
    store.dispatch([make_spec(i, group_size=1) for i in range(1500)], incarnation=0)
    slots = store.claim(1499, ttl_s=600.0, actor="actor", version=FIRST)
    looks: list[int] = []

    def choose(groups: Any) -> Choice:
        looks.append(0)
        for place, group in enumerate(groups):
            looks[-1] += 1
            if place == 100 and len(looks) <= 2:
                other.put(make_trajectory(slots[1400 + len(looks)]), slots[1400 + len(looks)])
            if group.settled and group.serial == 1402:
                return Choice(take=(group.group_id,))
        return Choice(missing=1)

    taken, _ = store.take(incarnation=0, choose=choose, timeout_s=0.0)
    assert [group.spec.group_id for group in taken] == ["g1402"]
    assert looks == [256, 256, 1403]
    store.close()
    other.close()
