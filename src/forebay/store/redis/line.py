"""One connection to the server, shared by threads: while one exchange is under way, the next calls gather.

A round trip takes as long for one call as for fifty, so whoever finds the line free sends all that wait.
Every call may be sent twice: a connection that breaks leaves open whether the server has acted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from forebay.clock import Clock
from forebay.errors import ForebayError, StoreError
from forebay.store.redis.faults import away, explain_answer
from forebay.store.redis.link import Call, Link

logger = logging.getLogger(__name__)

_MAX_CALLS: Final = 128
_MAX_BYTES: Final = 8 << 20
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0


class Line:
    """A connection that sends what several threads ask for in one go.

    Consumes: calls. Waits for: the server's answers; when it is away, for its return, until each call's
    deadline. Unblocked by: the server.

    Args:
        link: The connection.
        deadline_s: How long a call goes on trying.
        clock: Time of pauses and deadlines.
    """

    def __init__(self, link: Link, deadline_s: float, clock: Clock) -> None:
        self._link, self._deadline_s, self._clock = link, deadline_s, clock
        self._gate = threading.Lock()
        self._calls: deque[Call] = deque()
        self._busy = False
        self._closed = False
        self._pid = os.getpid()

    def send(self, call: Call) -> Any:
        """Return the server's answer to a call.

        Raises:
            StoreError: The server is away, refuses, or too few replicas have the write.
            ConfigError: The server will never answer: password, permissions, certificate.
        """
        self.send_all([call])
        return call.result()

    def send_all(self, calls: Sequence[Call]) -> None:
        """Make calls, in as few exchanges as their size allows; each of them ends with a result of its own.

        Raises:
            StoreError: The store is closed; no call was made.
        """
        if self._pid != os.getpid():
            raise StoreError("the store was opened before a fork", remedy="Start processes with spawn.")
        deadline_s = self._clock.monotonic_s() + self._deadline_s
        for call in calls:
            call.deadline_s = deadline_s
        with self._gate:
            if self._closed:
                raise StoreError("the store is closed")
            self._calls.extend(calls)
            calls[0].leads, self._busy = not self._busy, True
        for place, call in enumerate(calls):
            woken = call.leads
            try:
                if not woken:
                    woken = call.waiting.acquire()
            finally:
                if not woken:
                    self._abandon(calls[place:])
            if not call.done:
                self._lead(call)

    def close(self) -> None:
        """Finish what was sent, and disconnect."""
        with self._gate:
            self._closed = True
            if self._busy or self._pid != os.getpid():
                return
        self._link.disconnect()

    def _abandon(self, calls: Sequence[Call]) -> None:
        """Leave the queue after an interrupted wait; the line must not be handed to who is gone."""
        for call in calls:
            with self._gate:
                if call in self._calls:
                    self._calls.remove(call)
                leads = call.leads
            if leads:
                self._hand_on()

    def _lead(self, mine: Call) -> None:
        """Send what waits, this thread's own call first, and hand the line on."""
        batch = self._gather()
        try:
            self._exchange(batch)
        finally:
            # Whatever ended this thread's turn, nobody may wait for it.
            for call in batch:
                if not call.done:
                    call.finish(error=StoreError("the call was interrupted", remedy="Make it again."))
                if call is not mine:
                    call.waiting.release()
            self._hand_on()

    def _gather(self) -> list[Call]:
        with self._gate:
            batch = [self._calls.popleft()]
            num_bytes = batch[0].num_bytes
            while self._calls and len(batch) < _MAX_CALLS:
                num_bytes += self._calls[0].num_bytes
                if num_bytes > _MAX_BYTES:
                    break
                batch.append(self._calls.popleft())
            return batch

    def _hand_on(self) -> None:
        with self._gate:
            if self._calls:
                self._calls[0].leads = True
                self._calls[0].waiting.release()
                return
            self._busy = False
            closed = self._closed
        if closed:
            self._link.disconnect()

    def _exchange(self, batch: list[Call]) -> None:
        """Send calls until each is done; those that the connection broke under are sent again."""
        pause_s, tries = _FIRST_PAUSE_S, 0
        while left := [call for call in batch if not call.done]:
            tries += 1
            cause = self._link.exchange(left)
            if cause is None:
                continue
            self._link.disconnect()
            now_s = self._clock.monotonic_s()
            for call in left:
                if not call.done and now_s >= call.deadline_s:
                    call.finish(error=self._given_up(cause, tries))
            if not all(call.done for call in left):
                if tries == 1:
                    logger.warning(
                        "the store's server %s is away: %s; trying again", self._link.address, cause
                    )
                self._clock.sleep(pause_s)
                pause_s = min(2.0 * pause_s, _LAST_PAUSE_S)

    def _given_up(self, cause: Exception, tries: int) -> ForebayError:
        from redis.exceptions import ResponseError

        if isinstance(cause, ResponseError):
            return explain_answer(cause, self._link.address, "the call")
        return away(self._link.address, cause, tries, self._deadline_s)
