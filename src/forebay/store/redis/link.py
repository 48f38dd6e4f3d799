"""One exchange with the server: calls out, answers in, and what the errors among them mean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from forebay.errors import ForebayError, StoreError
from forebay.store.address import Address
from forebay.store.redis.faults import code_of, explain_answer, hopeless, is_passing, refused_password
from forebay.store.redis.scripts import Script
from forebay.store.redis.wire import Argument, pack

# A script's name and its key come before its arguments.
_SCRIPT_WORDS: Final = 4


class Connection(Protocol):
    """What a line needs of redis-py's connections."""

    def connect(self) -> None:
        """Connect and log in."""
        ...

    def disconnect(self) -> None:
        """Close the socket."""
        ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None:
        """Send bytes."""
        ...

    def read_response(self, *, disconnect_on_error: bool) -> Any:
        """Return the next answer, or raise the server's error."""
        ...


class Call:
    """A command or a script on its way to the server and back.

    Args:
        what: Names it in errors.
        words: The command.
        script: The script that the command runs, if it runs one.
        stage: A command that must succeed before it, in the same round trip. The script of such a call takes
            the arguments of several, and answers each.
        num_bytes: About how long the commands are.
    """

    def __init__(
        self,
        what: str,
        words: Sequence[Argument],
        script: Script | None = None,
        stage: Sequence[Argument] = (),
        num_bytes: int = 0,
    ) -> None:
        self.what, self.words, self.script = what, words, script
        self.stage, self.num_bytes = stage, num_bytes
        self.answer: Any = None
        self.error: Exception | None = None
        self.done = False
        self.leads = False
        self.deadline_s = 0.0
        self.waiting = threading.Lock()
        self.waiting.acquire()

    @property
    def writes(self) -> bool:
        """Whether it may change the store."""
        return self.script is not None and self.script.writes

    def finish(self, answer: Any = None, error: Exception | None = None) -> None:
        """Note how it ended."""
        self.answer, self.error, self.done = answer, error, True

    def result(self) -> Any:
        """Return the answer or raise the error."""
        if self.error is not None:
            raise self.error
        return self.answer


class Replicas:
    """How many replicas must have a write, and for how long a write waits for them.

    Args:
        number: Replicas; 0 for none.
        timeout_s: How long to wait.
        synced: Whether the write must be on their disks, and on the primary's, where the server can tell.
    """

    def __init__(self, number: int, timeout_s: float, *, synced: bool) -> None:
        self.number, self.timeout_s = number, timeout_s
        self._synced = synced

    def commands(self, key: str) -> tuple[tuple[Argument, ...], ...]:
        """Return what follows the writes of an exchange; its last answer says how many have them.

        The write before the wait belongs to this connection: after a reconnect the wait would otherwise be
        for nothing, although a repeated call wrote on the old one.
        """
        timeout_ms = int(self.timeout_s * 1000)
        wait = ("WAITAOF", 1, self.number, timeout_ms) if self._synced else ("WAIT", self.number, timeout_ms)
        return (("SET", key, 1), wait)

    def forget_synced(self) -> None:
        """Wait for replicas' memory only: the server has no WAITAOF."""
        self._synced = False

    def reached(self, answer: Any) -> int:
        """Return how many replicas have the writes."""
        return int(answer[1] if isinstance(answer, list) else answer)


class Link:
    """A connection to the server; one thread at a time uses it.

    Args:
        connect: Makes a connection, not yet open.
        address: The server's, for errors.
        beat_key: A key that may be written for the sake of writing.
        replicas: Who must have a write before it is acknowledged.
    """

    def __init__(
        self, connect: Callable[[], Connection], address: Address, beat_key: str, replicas: Replicas
    ) -> None:
        self.address = address
        self._connect, self._beat_key, self._replicas = connect, beat_key, replicas
        self._connection: Connection | None = None

    def exchange(self, calls: list[Call]) -> Exception | None:
        """Send calls once; return why some are left to be sent again, or None."""
        from redis.exceptions import AuthenticationError, RedisError, ResponseError

        clean = False
        try:
            connection = self._open()
            passing = self._send_once(connection, calls)
            clean = True
        except AuthenticationError as error:
            _fail(calls, refused_password(self.address, str(error)))
            return None
        except ResponseError as error:  # while connecting
            if is_passing(error):
                return error
            _fail(calls, explain_answer(error, self.address, "to connect"))
            return None
        except (RedisError, OSError) as error:
            reason = hopeless(error, self.address)
            if reason is None:
                return error
            _fail(calls, reason)
            return None
        finally:
            if not clean:
                self.disconnect()
        return passing

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.connect()
        return self._connection

    def disconnect(self) -> None:
        """Close the connection; the next exchange opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _send_once(self, connection: Connection, calls: list[Call]) -> Exception | None:
        """Send calls and read their answers; return a passing refusal under which some are left."""
        from redis.exceptions import ResponseError

        answers, reached = self._ask(connection, calls)
        unknown = [call for call, answer in zip(calls, answers, strict=True) if _is_unknown(answer)]
        if unknown:
            again, reached_again = self._ask(connection, unknown, with_source=True)
            reached = min(reached, reached_again)
            by_call = dict(zip(unknown, again, strict=True))
            answers = [by_call.get(call, answer) for call, answer in zip(calls, answers, strict=True)]
        passing: Exception | None = None
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, Exception):
                short = call.writes and reached < self._replicas.number
                call.finish(answer, self._too_few(reached) if short else None)
            elif isinstance(answer, ResponseError) and is_passing(answer):
                passing = answer
            else:
                call.finish(error=explain_answer(answer, self.address, call.what))
        return passing

    def _ask(
        self, connection: Connection, calls: list[Call], *, with_source: bool = False
    ) -> tuple[list[Any], int]:
        """Return the answers to calls, and how many replicas have what they wrote."""
        together = [call for call in calls if call.stage]
        alone = [call for call in calls if not call.stage]
        stages = [] if with_source else [call.stage for call in together]
        units = [*([together] if together else []), *([call] for call in alone)]
        commands = [*stages, *(_words(unit, with_source=with_source) for unit in units)]
        replicas = self._replicas
        waits = replicas.number > 0 and any(call.writes for call in calls)
        trailer = replicas.commands(self._beat_key) if waits else ()
        connection.send_packed_command(pack([*commands, *trailer]), check_health=False)
        staged = dict(zip(together, [_read(connection) for _ in stages], strict=False))
        by_call = {call: answer for unit in units for call, answer in _read_unit(connection, unit)}
        answers = [
            staged[call] if isinstance(staged.get(call), Exception) else by_call[call] for call in calls
        ]
        if not waits:
            return answers, replicas.number
        _read(connection)
        reached = _read(connection)
        if isinstance(reached, Exception) and "unknown command" in str(reached).lower():
            replicas.forget_synced()
            commands = list(replicas.commands(self._beat_key))
            connection.send_packed_command(pack(commands), check_health=False)
            _read(connection)
            reached = _read(connection)
        if isinstance(reached, Exception):
            return [reached] * len(answers), 0
        return answers, replicas.reached(reached)

    def _too_few(self, reached: int) -> StoreError:
        return StoreError(
            f"too few replicas of the store's server {self.address} have the write",
            got=f"{reached} after {self._replicas.timeout_s:g} s",
            limit=f"store.min_replicas={self._replicas.number}",
            remedy="Bring the replicas back; the call is safe to repeat.",
        )


def _read_unit(connection: Connection, unit: list[Call]) -> list[tuple[Call, Any]]:
    """Return the calls that one command made, each with its answer."""
    answer = _read(connection)
    if unit[0].stage and not isinstance(answer, Exception) and answer[0] == b"ok":
        return list(zip(unit, answer[1:], strict=True))
    return [(call, answer) for call in unit]


def _fail(calls: list[Call], error: ForebayError) -> None:
    for call in calls:
        call.finish(error=error)


def _is_unknown(answer: Any) -> bool:
    from redis.exceptions import ResponseError

    return isinstance(answer, ResponseError) and code_of(answer) == "NOSCRIPT"


def _words(unit: list[Call], *, with_source: bool) -> Sequence[Argument]:
    """Return the command that makes calls: with the script's text, if the server does not have it."""
    first, script = unit[0].words, unit[0].script
    if script is None:
        return first
    if with_source:
        first = ("EVAL", script.source, *first[2:])
    return (*first, *(word for call in unit[1:] for word in call.words[_SCRIPT_WORDS:]))


def _read(connection: Connection) -> Any:
    """Return the next answer; the server's errors are answers too."""
    from redis.exceptions import AuthenticationError, ResponseError

    try:
        return connection.read_response(disconnect_on_error=False)
    except (ResponseError, AuthenticationError) as error:
        return error
