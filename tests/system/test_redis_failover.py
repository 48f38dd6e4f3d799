"""Servers that are busy, loading, short of replicas or of a disk; nodes of a cluster; sentinels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.roles import free_port
from forebay.errors import ConfigError, StoreError
from forebay.store import Store, StoreSettings, open_store, view_store
from tests.redis_server import ALWAYS, EVERYSEC, RedisServer, has_waitaof, needs_redis
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

redis = pytest.importorskip("redis")
pytestmark = needs_redis
PREFIX = f"forebay:{{{RUN}}}:"
_PATIENCE_S = 60.0


def open_at(url: str, **changes: Any) -> Store:
    settings = {"engine": "redis", "url": url, "durability": "os", "deadline_s": 30.0} | changes
    return open_store(StoreSettings(**settings), RUN)


def put_all(store: Store) -> int:
    """Put the result of every member that is free; return how many there were."""
    slots = store.claim(100, ttl_s=600.0, actor="actor", version=FIRST)
    for slot in slots:
        assert store.put(make_trajectory(slot), slot) in ("accepted", "duplicate")
    return len(slots)


def wait_until(true: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", *EVERYSEC) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    client = redis.Redis.from_url(server.url)
    yield client
    client.close()


class TestServersThatCannotJustNow:
    def test_calls_wait_for_a_server_that_loads_its_files(self, server: RedisServer, client: Any) -> None:
        store, hasty = open_at(server.url), open_at(server.url, deadline_s=1.0)
        store.dispatch([make_spec(0)], incarnation=0)
        client.mset({f"other{i}": i for i in range(1000)})
        client.bgrewriteaof()
        wait_until(lambda: list(server.directory.glob("*/*.2.base.rdb")))
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        server.kill()
        slow = ("key-load-delay 4000", "loading-process-events-interval-bytes 1024")
        starting = threading.Thread(target=server.start, args=slow)
        starting.start()
        wait_until(lambda: is_loading(client))
        with pytest.raises(StoreError, match="is away: it is loading its files"):
            hasty.stats()
        assert put_all(store) == 2
        starting.join()
        assert store.audit() == ()
        store.close()
        hasty.close()

    def test_a_server_that_is_kept_busy_is_waited_for_and_then_named(
        self, server: RedisServer, client: Any
    ) -> None:
        store, hasty = open_at(server.url), open_at(server.url, deadline_s=1.0)
        store.dispatch([make_spec(0)], incarnation=0)
        client.config_set("busy-reply-threshold", 50)
        busy = threading.Thread(target=keep_busy, args=(server.url,))
        busy.start()
        wait_until(lambda: is_busy(client))
        with pytest.raises(StoreError, match=r"kept busy by somebody else's script .*SCRIPT KILL"):
            hasty.stats()
        ended = threading.Timer(0.3, client.script_kill)
        ended.start()
        assert put_all(store) == 2
        for thread in (busy, ended):
            thread.join()
        store.close()
        hasty.close()

    def test_a_server_that_wants_replicas_refuses_writes_and_says_so(
        self, server: RedisServer, client: Any
    ) -> None:
        store = open_at(server.url, deadline_s=1.0)
        store.dispatch([make_spec(0)], incarnation=0)
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(
            StoreError, match=r"fewer replicas than its min-replicas-to-write .*Bring the rep"
        ):
            store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)
        client.config_set("min-replicas-to-write", 0)
        assert put_all(store) == 2
        store.close()

    def test_a_server_that_cannot_save_refuses_writes_and_says_so(self, tmp_path: Path) -> None:
        directory = tmp_path / "redis"
        with RedisServer(directory, *EVERYSEC, "save 3600 1000000") as server:
            store = open_at(server.url)
            store.dispatch([make_spec(0)], incarnation=0)
            (directory / "dump.rdb" / "in-the-way").mkdir(parents=True)
            client = redis.Redis.from_url(server.url)
            client.bgsave()
            wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            with pytest.raises(StoreError, match=r"cannot write to its disk: claim was refused .*Free space"):
                store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)
            (directory / "dump.rdb" / "in-the-way").rmdir()
            (directory / "dump.rdb").rmdir()
            client.bgsave()
            wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
            assert put_all(store) == 2
            assert store.audit() == ()
            client.close()
            store.close()

    def test_a_server_whose_connections_are_used_up_is_named(self, server: RedisServer, client: Any) -> None:
        client.ping()
        client.config_set("maxclients", 1)
        with pytest.raises(StoreError, match="max number of clients reached"):
            open_at(server.url, deadline_s=1.0)

    def test_promises_are_asked_for_at_each_connection(self, server: RedisServer, client: Any) -> None:
        store = open_at(server.url)
        server.restart("appendonly no")
        with pytest.raises(ConfigError, match="appendonly no, limit appendonly yes"):
            store.stats()
        store.close()


def keep_busy(url: str) -> None:
    client = redis.Redis.from_url(url, socket_timeout=_PATIENCE_S)
    with pytest.raises(redis.exceptions.ResponseError, match="killed"):
        client.eval("while true do end", 0)
    client.close()


def is_loading(client: Any) -> bool:
    try:
        return bool(client.info("persistence")["loading"])
    except redis.exceptions.ConnectionError:
        return False


def is_busy(client: Any) -> bool:
    try:
        client.get("anything")
    except redis.exceptions.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


class TestCluster:
    @pytest.fixture
    def nodes(self, tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
        """Two nodes, the first with all slots."""
        with node(tmp_path / "first") as first, node(tmp_path / "second") as second:
            one, two = redis.Redis.from_url(first.url), redis.Redis.from_url(second.url)
            one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            two.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus_port(first))
            for client in (one, two):
                wait_until(lambda client=client: b"cluster_state:ok" in raw(client, "CLUSTER", "INFO"))
                wait_until(lambda client=client: b"cluster_known_nodes:2" in raw(client, "CLUSTER", "INFO"))
                client.close()
            yield first, second

    def test_a_store_is_found_through_any_node(self, nodes: tuple[RedisServer, RedisServer]) -> None:
        first, second = nodes
        store = open_at(second.url)
        store.rewind(0)
        store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
        assert put_all(store) == 4
        taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        store.record(make_entry(1, [taken[0].spec.group_id]), incarnation=0)
        assert store.audit() == ()
        settings = StoreSettings(engine="redis", url=second.url)
        with view_store(settings, RUN) as view:
            assert view.audit() == ()
        client = redis.Redis.from_url(first.url)
        assert {name.partition(b"}:")[0] for name in client.scan_iter()} == {b"forebay:{run-1"}
        client.close()
        store.close()

    def test_a_slot_may_move_to_another_node_in_mid_run(self, nodes: tuple[RedisServer, RedisServer]) -> None:
        """While it moves, calls are refused before they change anything; then they follow it."""
        store, hasty = open_at(nodes[0].url), open_at(nodes[0].url, deadline_s=1.0)
        store.dispatch([make_spec(i) for i in range(4)], incarnation=0)
        (slot,) = store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)
        one, two = (redis.Redis.from_url(node.url) for node in nodes)
        slot_number = int(raw(one, "CLUSTER", "KEYSLOT", PREFIX))
        ids = [raw(client, "CLUSTER", "MYID").decode() for client in (one, two)]
        two.execute_command("CLUSTER", "SETSLOT", slot_number, "IMPORTING", ids[0])
        one.execute_command("CLUSTER", "SETSLOT", slot_number, "MIGRATING", ids[1])
        keys = one.execute_command("CLUSTER", "GETKEYSINSLOT", slot_number, 1000)
        for moved in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
            for call in (
                lambda: hasty.put(make_trajectory(slot), slot),
                lambda: hasty.claim(1, ttl_s=60.0, actor="actor", version=FIRST),
            ):
                with pytest.raises(StoreError, match="moving the run's slot to another node"):
                    call()
            one.execute_command("MIGRATE", "127.0.0.1", nodes[1].port, "", 0, 5000, "KEYS", *moved)
        for client in (two, one):
            client.execute_command("CLUSTER", "SETSLOT", slot_number, "NODE", ids[1])
        assert store.put(make_trajectory(slot), slot) == "accepted"
        assert put_all(store) == 7
        assert one.dbsize() == 0
        assert store.audit() == ()
        for each in (one, two, store, hasty):
            each.close()

    def test_a_cluster_that_is_down_is_named(self, tmp_path: Path) -> None:
        with node(tmp_path / "alone") as alone:
            with pytest.raises(StoreError, match=r"is one of a cluster that is down .*--cluster check"):
                open_at(alone.url, deadline_s=1.0)
            with pytest.raises(ConfigError, match=r"a cluster has one database only .*limit database 0"):
                open_at(alone.url.removesuffix("0") + "1")


def node(directory: Path) -> RedisServer:
    return RedisServer(directory, *EVERYSEC, "cluster-enabled yes", f"cluster-port {free_port()}")


def bus_port(server: RedisServer) -> str:
    (option,) = (option for option in server.options if option.startswith("cluster-port"))
    return option.partition(" ")[2]


def raw(client: Any, *words: Any) -> bytes:
    """Return an answer as the server gives it."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        answer = connection.read_response()
    finally:
        client.connection_pool.release(connection)
    return answer if isinstance(answer, bytes) else str(answer).encode()


class TestReplicas:
    @pytest.fixture
    def pair(self, tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
        """A primary and its replica, which has caught up."""
        with (
            RedisServer(tmp_path / "primary", *ALWAYS, "repl-diskless-sync-delay 0") as primary,
            RedisServer(tmp_path / "replica", *ALWAYS, f"replicaof 127.0.0.1 {primary.port}") as replica,
        ):
            catch_up(primary)
            yield primary, replica

    def test_of_several_addresses_the_primary_is_used(self, pair: tuple[RedisServer, RedisServer]) -> None:
        primary, replica = pair
        store = open_at(f"redis://127.0.0.1:{replica.port},127.0.0.1:{primary.port}/0")
        store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
        assert put_all(store) == 4
        catch_up(primary)
        primary.kill()
        promote(replica)
        store.dispatch([make_spec(0), make_spec(1), make_spec(2)], incarnation=0)
        assert put_all(store) == 2
        assert store.stats().counters["accepted"] == 6
        assert store.audit() == ()
        store.close()

    def test_a_primary_that_became_a_replica_is_left(self, pair: tuple[RedisServer, RedisServer]) -> None:
        """Both stay up, and the open connections too: the old primary's answers say that it is none."""
        primary, replica = pair
        url = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}/0"
        store = open_at(url, min_replicas=1)
        store.dispatch([make_spec(0)], incarnation=0)
        promote(replica)
        client = redis.Redis.from_url(primary.url)
        client.replicaof("127.0.0.1", replica.port)
        client.close()
        catch_up(replica)
        assert put_all(store) == 2
        assert store.audit() == ()
        store.close()

    def test_sentinels_are_asked_for_the_primary_again_and_again(
        self, pair: tuple[RedisServer, RedisServer], tmp_path: Path
    ) -> None:
        primary, replica = pair
        options = (
            f"sentinel monitor store 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds store 300",
            "sentinel failover-timeout store 3000",
        )
        with RedisServer(tmp_path / "sentinel", *options, sentinel=True) as sentinel:
            away, client = free_port(), redis.Redis.from_url(sentinel.url)
            wait_until(lambda: client.execute_command("SENTINEL", "REPLICAS", "store"))
            store = open_at(f"redis+sentinel://127.0.0.1:{away},127.0.0.1:{sentinel.port}/store")
            store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
            (slot,) = store.claim(1, ttl_s=600.0, actor="actor", version=FIRST)
            assert store.put(make_trajectory(slot), slot) == "accepted"
            catch_up(primary)
            primary.kill()
            assert put_all(store) == 3
            named = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "store")
            assert int(named[1]) == replica.port
            assert store.stats().counters["accepted"] == 4
            assert store.audit() == ()
            store.close()
            with pytest.raises(StoreError, match="knows no service other"):
                open_at(f"redis+sentinel://127.0.0.1:{sentinel.port}/other", deadline_s=1.0)
            client.execute_command("SENTINEL", "MONITOR", "far", "192.0.2.1", 6379, 1)
            with pytest.raises(ConfigError, match=r"another host, without TLS \(got 192.0.2.1:6379\)"):
                open_at(f"redis+sentinel://127.0.0.1:{sentinel.port}/far")
            client.close()

    def test_waitaof_counts_what_is_on_the_replicas_disk(self, pair: tuple[RedisServer, RedisServer]) -> None:
        """A replica that has a write in its memory only does not count; WAIT would count it."""
        if not has_waitaof():
            pytest.skip("this server has no WAITAOF: Redis has it from 7.2 on, and Valkey")
        primary, replica = pair
        client = redis.Redis.from_url(replica.url)
        client.config_set("appendonly", "no")
        in_memory = open_at(primary.url, min_replicas=1)
        in_memory.dispatch([make_spec(0)], incarnation=0)
        one, other = in_memory.claim(2, ttl_s=600.0, actor="actor", version=FIRST)
        assert in_memory.put(make_trajectory(one), one) == "accepted"
        changes = {"durability": "fsync", "min_replicas": 1, "replica_timeout_s": 0.5}
        with pytest.raises(StoreError, match=r"too few replicas .*got 0 after 0.5 s"):
            open_at(primary.url, **changes)
        client.config_set("appendonly", "yes")
        catch_up(primary)
        on_disk = open_at(primary.url, **changes)
        assert on_disk.put(make_trajectory(other), other) == "accepted"
        primary.kill()
        replica.restart()
        promote(replica)
        after = open_at(replica.url)
        assert [member.member for member in after.read_group("g0").trajectories] == [0, 1]
        assert after.audit() == ()
        for each in (client, in_memory, on_disk, after):
            each.close()


def catch_up(primary: RedisServer) -> None:
    """Wait until the replica has everything, on its disk where that can be told."""
    client = redis.Redis.from_url(primary.url, socket_timeout=_PATIENCE_S)
    client.set("probe", 1)
    if has_waitaof():
        assert client.execute_command("WAITAOF", 1, 1, 30_000) == [1, 1]
    else:
        assert client.wait(1, 30_000) == 1
    client.delete("probe")
    client.close()


def promote(replica: RedisServer) -> None:
    client = redis.Redis.from_url(replica.url)
    client.replicaof("NO", "ONE")
    client.close()
