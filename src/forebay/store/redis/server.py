"""The server of a store: how it is reached, and how a script's refusal becomes an error."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable
from typing import Any, Final, cast

from forebay.clock import SystemClock
from forebay.errors import ConfigError
from forebay.store.address import Address, parse_address
from forebay.store.redis.line import Line
from forebay.store.redis.link import Call, Connection, Link, Replicas
from forebay.store.redis.refusals import refusal
from forebay.store.redis.scripts import Script
from forebay.store.redis.wire import Argument
from forebay.store.settings import StoreSettings

_REPLY_TIMEOUT_S: Final = 10.0
_LARGE_BYTES: Final = 1 << 20
_STAGED_S: Final = 600


class Server:
    """A server as one store uses it: four connections, each opened when it is first needed.

    Puts share one, and large puts another, so that a lease is renewed and a small trajectory is stored while
    64 MB are on their way; frames are read through a third.

    Args:
        settings: Address, user, certificates, replicas, deadline.
        run_id: The run whose store it is; every key holds it as a hash tag, so that all lie in one slot of a
            cluster.

    Raises:
        ConfigError: The client is not installed, or the variable with the password is not set.
    """

    def __init__(self, settings: StoreSettings, run_id: str) -> None:
        if settings.url is None:
            raise ConfigError("a redis store needs an address", remedy="Set store.url.")
        self.address = parse_address(settings.url)
        self.run_id = run_id
        self.run_id = run_id
        self.prefix = f"forebay:{{{run_id}}}:"
        self._meta_key = f"{self.prefix}meta"
        connect = _connector(settings, self.address)
        self._control, self._puts, self._large_puts, self._reads = (
            Line(self._link(settings, connect), settings.deadline_s, SystemClock()) for _ in range(4)
        )

    def run(self, script: Script, *arguments: Argument) -> list[Any]:
        """Run a script; return its answer.

        Raises:
            ForebayError: What the script refused, or why the server did not answer.
        """
        return self._run(self._control, script, arguments)

    def put(self, script: Script, *arguments: Argument, frame: bytes) -> list[Any]:
        """Run a script that takes in a frame: it finds it staged under the name that is its last argument.

        The frame is sent before the script, in the same round trip. What is staged and not taken in, because
        the connection broke between the two, is gone after a while.
        """
        line = self._large_puts if len(frame) > _LARGE_BYTES else self._puts
        name = secrets.token_hex(12)
        stage = ("SET", f"{self.prefix}s:{name}", frame, "EX", _STAGED_S)
        return self._run(line, script, (*arguments, name), stage, len(frame))

    def ask(self, *words: Argument) -> Any:
        """Return the answer to a command that changes nothing."""
        return self._control.send(Call(str(words[0]), words))

    def read(self, *words: Argument) -> Any:
        """Return the answer to a command whose answer may be long."""
        return self._reads.send(Call(str(words[0]), words))

    def close(self) -> None:
        """Disconnect."""
        for line in (self._control, self._puts, self._large_puts, self._reads):
            line.close()

    def _link(self, settings: StoreSettings, connect: Callable[[], Connection]) -> Link:
        synced = settings.durability == "fsync"
        replicas = Replicas(settings.min_replicas, settings.replica_timeout_s, synced=synced)
        return Link(connect, self.address, f"{self.prefix}beat", replicas)

    def _run(
        self,
        line: Line,
        script: Script,
        arguments: tuple[Argument, ...],
        stage: tuple[Argument, ...] = (),
        num_bytes: int = 0,
    ) -> list[Any]:
        words = ("EVALSHA", script.digest, 1, self._meta_key, *arguments)
        answer: list[Any] = line.send(Call(script.name, words, script, stage, num_bytes))
        if answer[0] != b"ok":
            raise refusal(self.address, answer)
        return answer[1:]


def _connector(settings: StoreSettings, address: Address) -> Callable[[], Connection]:
    """Return what makes a connection.

    Raises:
        ConfigError: The client is not installed, or the variable with the password is not set.
    """
    try:
        from redis import connection
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ConfigError(
            "a redis store needs a package that is not installed: redis",
            remedy='Install it: pip install "forebay[redis]"',
        ) from error
    wait_s = settings.replica_timeout_s if settings.min_replicas else 0.0
    timeout_s = min(_REPLY_TIMEOUT_S, settings.deadline_s)
    arguments: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": settings.username,
        "password": _password(settings),
        "socket_timeout": timeout_s + wait_s,
        "socket_connect_timeout": timeout_s,
        # The line tries again by itself; it knows what may be sent twice.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if not address.tls:
        return functools.partial(cast(Any, connection.Connection), **arguments)
    arguments |= {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": _existing(settings.tls_ca_file, "store.tls_ca_file"),
        "ssl_certfile": _existing(settings.tls_cert_file, "store.tls_cert_file"),
        "ssl_keyfile": _existing(settings.tls_key_file, "store.tls_key_file"),
    }
    return functools.partial(cast(Any, connection.SSLConnection), **arguments)


def _password(settings: StoreSettings) -> str | None:
    if settings.password_env is None:
        return None
    password = os.environ.get(settings.password_env)
    if not password:
        raise ConfigError(
            "the password of the store's server is not set",
            got=f"no environment variable {settings.password_env}",
            remedy=f"Export {settings.password_env}, or let store.password_env name the one that holds it.",
        )
    return password


def _existing(path: Any, name: str) -> str | None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{name} is not a file", got=path)
    return None if path is None else str(path)
