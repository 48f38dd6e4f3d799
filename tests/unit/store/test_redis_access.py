"""What the store asks of a server before it writes: promises, password, permissions, certificate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError, StoreError
from forebay.store import Store, StoreSettings, open_store, view_store
from tests.redis_server import (
    ALWAYS,
    EVERYSEC,
    Certificates,
    RedisServer,
    make_certificates,
    needs_openssl,
    needs_redis,
)
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

redis = pytest.importorskip("redis")
pytestmark = needs_redis
# As docs/how-to/redis.md gives it.
ACL = (
    "~forebay:* resetchannels -@all +auth +hello +ping +select +info +time +config|get "
    "+eval +evalsha +wait +get +set +mget +strlen +exists +unlink +rename +persist +scan +hget +hset +hdel "
    "+hmget +hgetall +hkeys +hlen +hstrlen +hexists +hincrby +zadd +zrem +zcard +zrange +zrangebyscore"
)


def settings(server: RedisServer, **changes: Any) -> StoreSettings:
    return StoreSettings(**{"engine": "redis", "url": server.url, "deadline_s": 2.0} | changes)


def work(store: Store) -> None:
    """Call every verb once."""
    incarnation = store.rewind(0).incarnation
    store.dispatch([make_spec(0), make_spec(1)], incarnation=incarnation)
    slots = store.claim(4, ttl_s=10.0, actor="actor", version=FIRST)
    store.heartbeat(slots, ttl_s=10.0)
    store.release_slot(slots[3])
    store.fail(store.claim(1, ttl_s=10.0, actor="actor", version=FIRST)[0], reason="crash")
    for slot in slots:
        store.put(make_trajectory(slot), slot)
    taken, _ = store.take(incarnation=incarnation, choose=oldest_first(2), timeout_s=0.0)
    store.reject(taken[1].spec.group_id, incarnation=incarnation, reason="stale")
    store.record(make_entry(1, [taken[0].spec.group_id]), incarnation=incarnation)
    store.read_group(taken[0].spec.group_id)
    store.advance_fork(1, incarnation=incarnation)
    store.commit(1, incarnation=incarnation)
    store.truncate_journal(1, incarnation=incarnation)
    assert store.audit() == ()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "redis"


class TestPromises:
    @pytest.mark.parametrize(
        ("options", "durability", "refusal"),
        [
            ((), "os", r"appendonly no, limit appendonly yes\). Run: redis-cli CONFIG SET appendonly yes"),
            (EVERYSEC, "fsync", r"appendfsync everysec, limit appendfsync always.*or set store.durability"),
            (("appendonly yes", "appendfsync no"), "os", r"appendfsync no, limit appendfsync everysec"),
            ((*ALWAYS, "no-appendfsync-on-rewrite yes"), "fsync", "no-appendfsync-on-rewrite yes"),
            ((*ALWAYS, "maxmemory-policy allkeys-lru"), "fsync", "would evict .*maxmemory-policy noeviction"),
        ],
    )
    def test_a_server_that_promises_less_is_refused_with_the_remedy(
        self, directory: Path, options: tuple[str, ...], durability: str, refusal: str
    ) -> None:
        with RedisServer(directory, *options) as server:
            with pytest.raises(ConfigError, match=refusal):
                open_store(settings(server, durability=durability), RUN)
            with pytest.raises(ConfigError, match=f"no store of run {RUN}"):
                view_store(settings(server, durability=durability), RUN)

    def test_a_server_with_other_clocks_is_refused(self, directory: Path) -> None:
        class Ahead(SystemClock):
            def wall_s(self) -> float:
                return super().wall_s() + 60.0

        with (
            RedisServer(directory, *ALWAYS) as server,
            pytest.raises(ConfigError, match=r"got \+(59|60)\.. s"),
        ):
            open_store(settings(server), RUN, Ahead())

    def test_a_server_that_does_not_tell_is_taken_on_trust_and_said(
        self, directory: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            RedisServer(directory, *EVERYSEC, 'rename-command CONFIG ""') as server,
            caplog.at_level(logging.WARNING),
        ):
            open_store(settings(server), RUN).close()
        assert "needs appendfsync always, and is taken on trust" in caplog.text


class TestAccess:
    @pytest.fixture
    def guarded(self, directory: Path) -> Iterator[RedisServer]:
        options = (*ALWAYS, "requirepass admin", f"user forebay on >secret {ACL}")
        with RedisServer(directory, *options) as server:
            yield server

    def test_a_user_with_the_documented_permissions_can_do_everything(
        self, guarded: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORE_PASSWORD", "secret")
        store = open_store(settings(guarded, username="forebay", password_env="STORE_PASSWORD"), RUN)
        work(store)
        store.close()

    def test_a_missing_or_wrong_password_is_one_clear_line(
        self, guarded: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(
            ConfigError, match=r"refuses the user or the password: .*store.password_env names"
        ):
            open_store(settings(guarded), RUN)
        with pytest.raises(ConfigError, match="no environment variable STORE_PASSWORD"):
            open_store(settings(guarded, password_env="STORE_PASSWORD"), RUN)
        monkeypatch.setenv("STORE_PASSWORD", "wrong")
        with pytest.raises(ConfigError, match="refuses the user or the password"):
            open_store(settings(guarded, password_env="STORE_PASSWORD"), RUN)

    def test_a_command_that_is_not_allowed_is_named(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORE_PASSWORD", "secret")
        options = (*ALWAYS, f"user forebay on >secret {ACL} -zadd")
        with RedisServer(directory, *options) as server:
            client = redis.Redis.from_url(server.url, username="forebay", password="secret")
            with pytest.raises(ConfigError, match=r"does not allow begin: .*that docs/how-to/redis.md lists"):
                open_store(settings(server, username="forebay", password_env="STORE_PASSWORD"), RUN)
            assert client.get(f"forebay:{{{RUN}}}:meta") is None  # nothing was made
            client.close()


@needs_openssl
class TestTls:
    @pytest.fixture
    def certificates(self, tmp_path: Path) -> Certificates:
        return make_certificates(tmp_path / "certificates")

    @pytest.fixture
    def server(self, directory: Path, certificates: Certificates) -> Iterator[RedisServer]:
        with RedisServer(directory, *ALWAYS, tls=certificates) as server:
            yield server

    def test_the_right_authority_is_believed(self, server: RedisServer, certificates: Certificates) -> None:
        store = open_store(settings(server, tls_ca_file=certificates.authority), RUN)
        work(store)
        store.close()

    def test_a_certificate_of_another_authority_is_refused(self, server: RedisServer, tmp_path: Path) -> None:
        other = make_certificates(tmp_path / "other")
        with pytest.raises(ConfigError, match=r"is not valid: .*Let store.tls_ca_file name the authority"):
            open_store(settings(server, tls_ca_file=other.authority), RUN)
        with pytest.raises(ConfigError, match="is not valid: self-signed certificate"):
            open_store(settings(server), RUN)

    @pytest.mark.parametrize(
        ("made", "reason"),
        [({"host": "DNS:elsewhere.example"}, "IP address mismatch"), ({"days": 0}, "expired")],
    )
    def test_a_certificate_for_another_host_or_time_is_refused(
        self, directory: Path, tmp_path: Path, made: dict[str, Any], reason: str
    ) -> None:
        certificates = make_certificates(tmp_path / "certificates", **made)
        with (
            RedisServer(directory, *ALWAYS, tls=certificates) as server,
            pytest.raises(ConfigError, match=f"is not valid: .*{reason}"),
        ):
            open_store(settings(server, tls_ca_file=certificates.authority), RUN)

    def test_a_server_may_ask_for_a_client_certificate(
        self, directory: Path, certificates: Certificates
    ) -> None:
        with RedisServer(directory, *ALWAYS, "tls-auth-clients yes", tls=certificates) as server:
            with pytest.raises(StoreError, match="is away"):
                open_store(settings(server, tls_ca_file=certificates.authority, deadline_s=0.3), RUN)
            mine = {"tls_cert_file": certificates.certificate, "tls_key_file": certificates.key}
            open_store(settings(server, tls_ca_file=certificates.authority, **mine), RUN).close()
