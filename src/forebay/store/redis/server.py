"""The server of a store: how it is reached, and how a script's refusal becomes an error."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from forebay.clock import SystemClock
from forebay.errors import ConfigError, StoreError
from forebay.store.address import Address, parse_address
from forebay.store.redis.line import Line
from forebay.store.redis.link import Call, Link, Replicas
from forebay.store.redis.refusals import refusal
from forebay.store.redis.routes import Connection, Connectors, Route
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
        greet: Called with each new connection; raises if its server is not one to be used.

    Raises:
        ConfigError: The client is not installed, or the variable with the password is not set.
    """

    def __init__(self, settings: StoreSettings, run_id: str, greet: Callable[[Connection], None]) -> None:
        self.address = server_address(settings)
        self.run_id = run_id
        self.prefix = f"forebay:{{{run_id}}}:"
        # The second key is never there: a cluster that is moving the slot to another node, key by key, then
        # refuses a script before it begins, instead of at the first key that is gone.
        self._keys = (f"{self.prefix}meta", f"{self.prefix}never")
        connectors = _connectors(settings, self.address)

        def link() -> Link:
            plaintext = settings.allow_plaintext
            route = Route(self.address, connectors, greet, allow_plaintext=plaintext)
            synced = settings.durability == "fsync"
            replicas = Replicas(settings.min_replicas, settings.replica_timeout_s, synced=synced)
            return Link(route, f"{self.prefix}beat", replicas)

        self._control, self._puts, self._large_puts, self._reads = (
            Line(link(), settings.deadline_s, SystemClock()) for _ in range(4)
        )

    def run(self, script: Script, *arguments: Argument) -> list[Any]:
        """Run a script; return its answer.

        Raises:
            ForebayError: What the script refused, or why the server did not answer.
        """
        return self._checked(self._control.send(Call(script.name, self._words(script, *arguments), script)))

    def put_many(
        self, script: Script, puts: Sequence[tuple[tuple[Argument, ...], bytes]]
    ) -> list[int | StoreError]:
        """Run a script that takes in frames; return the number it answers for each, or why there is none.

        A frame is sent before the script, in the same round trip, under a name that is added to the arguments
        of its put. What is staged and not taken in, because the connection broke between the two, is gone
        after a while.

        Args:
            script: Takes the arguments of several puts, and answers each.
            puts: Arguments and frame of each.
        """
        name = secrets.token_hex(12)
        calls = [self._put_call(script, *put, f"{name}.{place}") for place, put in enumerate(puts)]
        small = [call for call in calls if call.num_bytes <= _LARGE_BYTES]
        large = [call for call in calls if call.num_bytes > _LARGE_BYTES]
        for line, some in ((self._puts, small), (self._large_puts, large)):
            if some:
                line.send_all(some)
        return [self._outcome(call) for call in calls]

    def _put_call(self, script: Script, arguments: tuple[Argument, ...], frame: bytes, name: str) -> Call:
        stage = ("SET", f"{self.prefix}s:{name}", frame, "EX", _STAGED_S)
        return Call(script.name, self._words(script, *arguments, name), script, stage, len(frame))

    def _outcome(self, call: Call) -> int | StoreError:
        try:
            answer = call.result()
            return answer if isinstance(answer, int) else self._checked(answer)[0]
        except StoreError as error:
            return error

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

    def _words(self, script: Script, *arguments: Argument) -> tuple[Argument, ...]:
        return ("EVALSHA", script.digest, len(self._keys), *self._keys, *arguments)

    def _checked(self, answer: list[Any]) -> list[Any]:
        if answer[0] != b"ok":
            raise refusal(self.address, answer)
        return answer[1:]


def server_address(settings: StoreSettings) -> Address:
    """Return the address of a store's server.

    Raises:
        ConfigError: There is none.
    """
    if settings.url is None:
        raise ConfigError("a redis store needs an address", remedy="Set store.url.")
    return parse_address(settings.url)


def _connectors(settings: StoreSettings, address: Address) -> Connectors:
    """Return what makes connections.

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
        "socket_timeout": timeout_s + wait_s,
        "socket_connect_timeout": timeout_s,
        # The line tries again by itself; it knows what may be sent twice.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    kind: Any = connection.Connection
    if address.tls:
        kind = connection.SSLConnection
        arguments |= {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": _existing(settings.tls_ca_file, "store.tls_ca_file"),
            "ssl_certfile": _existing(settings.tls_cert_file, "store.tls_cert_file"),
            "ssl_keyfile": _existing(settings.tls_key_file, "store.tls_key_file"),
        }
    login = {"username": settings.username, "password": _password(settings), "db": address.database}
    return Connectors(
        server=functools.partial(kind, **login, **arguments), sentinel=functools.partial(kind, **arguments)
    )


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
