"""One exchange with the server: calls out, answers in, and what the errors among them mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from forebay.errors import ForebayError, StoreError
from forebay.store.redis.faults import code_of, explain_answer, hopeless, is_passing, refused_password
from forebay.store.redis.routes import Connection, Route
from forebay.store.redis.scripts import Script
from forebay.store.redis.wire import Argument, send

_FIRST_WAIT_MS: Final = 10
# A script's name and its keys come before its arguments.
_SCRIPT_WORDS: Final = 5


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

    def waits(self) -> Iterator[tuple[Argument, ...]]:
        """Yield the commands that wait for the writes of a connection, until enough replicas have them.

        A replica tells what is on its disk when it is asked, which is often just before it is there, and
        otherwise once a second; so the question is put again.
        """
        left_ms = int(self.timeout_s * 1000)
        if not self._synced:
            yield ("WAIT", self.number, left_ms)
            return
        pause_ms = _FIRST_WAIT_MS
        while left_ms > 0:
            pause_ms = min(2 * pause_ms, left_ms)
            yield ("WAITAOF", 1, self.number, pause_ms)
            left_ms -= pause_ms

    def forget_synced(self) -> None:
        """Wait for replicas' memory only: the server has no WAITAOF."""
        self._synced = False

    def reached(self, answer: Any) -> int:
        """Return how many replicas have the writes."""
        return int(answer[1] if isinstance(answer, list) else answer)


class Link:
    """A connection to the server; one thread at a time uses it.

    Args:
        route: Opens connections to it.
        beat_key: A key that may be written for the sake of writing.
        replicas: Who must have a write before it is acknowledged.
    """

    def __init__(self, route: Route, beat_key: str, replicas: Replicas) -> None:
        self.address = route.address
        self._route, self._beat_key, self._replicas = route, beat_key, replicas
        self._connection: Connection | None = None

    def exchange(self, calls: list[Call]) -> Exception | None:
        """Send calls once; return why some are left to be sent again, or None."""
        from redis.exceptions import AuthenticationError, RedisError, ResponseError

        clean = False
        try:
            connection = self._open()
            passing = self._send_once(connection, calls)
            clean = True
        except ForebayError as error:  # not a server to be used
            _fail(calls, error)
            return None
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
            self._connection = self._route.open()
        return self._connection

    def disconnect(self) -> None:
        """Close the connection; the next exchange opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _send_once(self, connection: Connection, calls: list[Call]) -> Exception | None:
        """Send calls and read their answers; return a passing refusal under which some are left."""
        from redis.exceptions import MovedError, ResponseError

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
                if isinstance(answer, MovedError):
                    self._route.point_to(answer.host, answer.port)
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
        waits = replicas.waits() if any(call.writes for call in calls) and replicas.number else None
        # The write before the wait belongs to this connection: after a reconnect the wait would otherwise be
        # for nothing, although a repeated call wrote on the old one.
        trailer = (("SET", self._beat_key, 1), next(waits)) if waits is not None else ()
        send(connection, [*commands, *trailer])
        staged = dict(zip(together, [_read(connection) for _ in stages], strict=False))
        by_call = {call: answer for unit in units for call, answer in _read_unit(connection, unit)}
        answers = [
            staged[call] if isinstance(staged.get(call), Exception) else by_call[call] for call in calls
        ]
        if waits is None:
            return answers, replicas.number
        _read(connection)
        reached = self._wait(connection, waits)
        if isinstance(reached, Exception):
            return [answer if isinstance(answer, Exception) else reached for answer in answers], 0
        return answers, reached

    def _wait(self, connection: Connection, waits: Iterator[tuple[Argument, ...]]) -> int | Exception:
        """Return how many replicas have the writes, or the server's error; the first wait was sent."""
        replicas, answer = self._replicas, _read(connection)
        if isinstance(answer, Exception) and "unknown command" in str(answer).lower():
            replicas.forget_synced()
            waits = replicas.waits()
            answer = [0, 0]
        while not isinstance(answer, Exception) and replicas.reached(answer) < replicas.number:
            wait = next(waits, None)
            if wait is None:
                break
            send(connection, [wait])
            answer = _read(connection)
        return answer if isinstance(answer, Exception) else replicas.reached(answer)

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
    return isinstance(answer, Exception) and code_of(answer) == "NOSCRIPT"


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
    try:
        return connection.read_response(disconnect_on_error=False)
    except _server_errors() as error:
        return error


def _server_errors() -> tuple[type[Exception], ...]:
    # Called only when an answer is an error: there are several answers to each put.
    from redis.exceptions import AuthenticationError, ResponseError

    return ResponseError, AuthenticationError
