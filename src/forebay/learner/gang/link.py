"""One connection between two processes of a learner: frames sorted by topic, and whether the other lives."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import PeerFailedError, WireError
from forebay.learner.gang.frames import Frame, receive_frame, send_frame

logger = logging.getLogger(__name__)

_HANDSHAKE = "handshake"
_FAREWELL = "farewell"
_FAILED = "failed"
_HANDSHAKE_S = 5.0
_FAREWELL_S = 1.0
_HANDSHAKE_BYTES = 64 * 2**10
_LOOK_S = 0.5
_CLOCK = SystemClock()


class Introduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a process is.

    Args:
        process: Its number.
        num_processes: How many it takes part with.
        run_id: The run that it trains.
        settings: Hash of the settings that it trains with.
        host: Its host.
        pid: Its process id there.
    """

    process: int
    num_processes: int
    run_id: str
    settings: str
    host: str
    pid: int

    def spelled(self) -> str:
        """Name the process for a message."""
        return f"learner process {self.process} (pid {self.pid} on {self.host})"


class Link:
    """A connection to another process of the learner, already introduced.

    A thread reads frames and sorts them by topic. Consumes: frames. Waits for: the other process. Unblocked
    by: bytes, or the end of the connection. Produces: frames of a topic to whoever waits for them.

    Args:
        connection: The socket; closed once the other end has closed it.
        peer: Who is at the other end.
        clock: Dates what is heard.
        on_frame: Called with every frame, in the reading thread; returns whether it took the frame.
        on_lost: Called with the cause, once, when the other process is gone without a farewell.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: Introduction,
        clock: Clock,
        on_frame: Callable[[Introduction, Frame], bool],
        on_lost: Callable[[str], None],
    ) -> None:
        self.peer = peer
        self._connection = connection
        self._clock = clock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._inbox: defaultdict[str, deque[Frame]] = defaultdict(deque)
        self._heard_s = clock.monotonic_s()
        self._over: str | None = None
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._read, name=f"gang-{peer.process}", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Time since anything was heard; 0 once the other has said farewell."""
        return 0.0 if self._over is not None else self._clock.monotonic_s() - self._heard_s

    def hear_from_now(self) -> None:
        """Count silence from now on."""
        self._heard()

    def send(self, frame: Frame) -> None:
        """Send a frame; returns when the system has taken it.

        Raises:
            PeerFailedError: The other process is gone.
        """
        try:
            with self._sending:
                send_frame(self._connection, frame)
        except OSError as error:
            self._lose_sending(error)
            raise PeerFailedError(self._over or str(error)) from error

    def beat(self, frame: Frame) -> None:
        """Send a heartbeat, unless a frame is on its way: then its bytes are the sign of life.

        The watch must not wait for a process that may be gone.
        """
        if self._over is not None or not self._sending.acquire(blocking=False):
            return
        try:
            send_frame(self._connection, frame)
        except OSError as error:
            failure = error
        else:
            return
        finally:
            self._sending.release()
        self._lose_sending(failure)

    def receive(self, topic: str, check: Callable[[], None] = lambda: None) -> Frame:
        """Return the next frame of a topic; heartbeats bound the wait.

        Args:
            topic: Of the frame.
            check: Called twice a second while there is none; what it raises ends the wait.

        Raises:
            PeerFailedError: The other process is gone, or has said farewell.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox[topic] or self._over is not None, _LOOK_S)
                if self._inbox[topic]:
                    return self._inbox[topic].popleft()
                if self._over is not None:
                    raise PeerFailedError(self._over)
            check()

    def lose(self, how: str) -> None:
        """Give the other process up."""
        cause = f"{self.peer.spelled()} is gone: {how}"
        if self._end(cause):
            self._on_lost(cause)

    def close(self, failure: str | None = None) -> None:
        """Say farewell, or why this process fails, and send nothing more."""
        frame = Frame(_FAREWELL) if failure is None else Frame(_FAILED, failure.encode())
        self._end("this process has said farewell")
        # Not for ever: a frame may be on its way to a process that is gone.
        if not self._sending.acquire(timeout=_FAREWELL_S):
            return
        try:
            send_frame(self._connection, frame)
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone already: then nobody waits for a farewell
        finally:
            self._sending.release()

    def _end(self, cause: str) -> bool:
        with self._changed:
            first = self._over is None
            self._over = self._over or cause
            self._changed.notify_all()
        return first

    def _lose_sending(self, error: OSError) -> None:
        # The last that it said, which tells why, may still be unread.
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None, _FAREWELL_S)
        self.lose(f"sending to it failed: {error}")

    def _heard(self) -> None:
        self._heard_s = self._clock.monotonic_s()

    def _read(self) -> None:
        try:
            while frame := receive_frame(self._connection, self._heard):
                self._sort(frame)
        except (WireError, msgspec.MsgspecError) as error:
            self.lose(str(error))
        except MemoryError as error:
            self.lose(f"what it sends does not fit this host's memory: {error}")
        except OSError as error:
            self.lose(error.strerror or str(error))
        else:
            self.lose("it closed its connection")
        # Not under somebody's hands: what is being sent fails soon, as nobody reads it.
        if self._sending.acquire(timeout=_FAREWELL_S):
            self._connection.close()
            self._sending.release()

    def _sort(self, frame: Frame) -> None:
        if frame.topic == _FAREWELL:
            self._end(f"{self.peer.spelled()} has said farewell")
        elif frame.topic == _FAILED:
            self.lose(f"it failed: {frame.body.decode(errors='replace')}")
        elif not self._on_frame(self.peer, frame):
            with self._changed:
                self._inbox[frame.topic].append(frame)
                self._changed.notify_all()


def introduce(connection: socket.socket, me: Introduction, token: str) -> Introduction:
    """Prove to process 0 that this process belongs to it; return who process 0 is.

    The token itself is not sent: process 0 gives a number drawn for this occasion, and is answered with a
    keyed hash of it and of the introduction.

    Raises:
        PeerFailedError: Process 0 refuses, and says why.
        WireError: It does not speak this protocol.
        OSError: The connection is gone.
    """
    connection.settimeout(_HANDSHAKE_S)
    nonce = _receive(connection).body
    body = msgspec.json.encode(me)
    proof = _proof(token, nonce, body)
    send_frame(connection, Frame(_HANDSHAKE, msgspec.json.encode({"me": me, "proof": proof})))
    answer = msgspec.json.decode(_receive(connection).body, type=_Answer)
    if answer.refusal or answer.me is None:
        raise PeerFailedError(f"process 0 of the learner refuses this process: {answer.refusal}")
    return answer.me


def admit(
    connection: socket.socket,
    me: Introduction,
    token: str,
    refusal: Callable[[Introduction], str],
    clock: Clock = _CLOCK,
) -> Introduction | None:
    """As process 0, find out who connected; None if it does not belong here, which it is told.

    Args:
        connection: What was accepted.
        me: Who process 0 is.
        token: What all processes of the learner know.
        refusal: Returns why a process that knows the token cannot take part; empty if it can.
        clock: Bounds the whole handshake, however slowly its bytes come.
    """
    connection.settimeout(_HANDSHAKE_S)
    nonce, admitted, deadline_s = secrets.token_bytes(32), None, clock.monotonic_s() + _HANDSHAKE_S

    def heard() -> None:
        if clock.monotonic_s() > deadline_s:
            raise TimeoutError(f"it took longer than {_HANDSHAKE_S:.0f} s")

    try:
        send_frame(connection, Frame(_HANDSHAKE, nonce))
        said = msgspec.json.decode(_receive(connection, heard).body, type=_Claim)
        right = hmac.compare_digest(_proof(token, nonce, msgspec.json.encode(said.me)), said.proof)
        why = refusal(said.me) if right else "it does not know the token (FOREBAY_GANG_TOKEN)"
        answer = _Answer(me=None if why else me, refusal=why)
        send_frame(connection, Frame(_HANDSHAKE, msgspec.json.encode(answer)))
        admitted = None if why else said.me
    except (OSError, WireError, msgspec.MsgspecError) as error:
        logger.warning("refused a connection that made no handshake: %s", error)
    if admitted is None:
        connection.close()
    return admitted


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    me: Introduction
    proof: str


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    me: Introduction | None
    refusal: str


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end of a connection has closed it; nothing is read, and nobody waits."""
    timeout_s = connection.gettimeout()
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(timeout_s)


def _receive(connection: socket.socket, heard: Callable[[], None] = lambda: None) -> Frame:
    frame = receive_frame(connection, heard, max_header_bytes=_HANDSHAKE_BYTES, max_array_bytes=0)
    if frame is None or frame.topic != _HANDSHAKE:
        raise WireError("handshake", "a process does not introduce itself", got=frame and frame.topic)
    return frame


def _proof(token: str, nonce: bytes, body: bytes) -> str:
    return hmac.new(token.encode(), nonce + body, hashlib.sha256).hexdigest()


def settings_digest(config: Any) -> str:
    """Return the hash of a tree of JSON types."""
    return hashlib.sha256(msgspec.json.encode(config, order="sorted")).hexdigest()[:32]
