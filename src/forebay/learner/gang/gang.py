"""What the processes of a learner say to one another, and the watch that each keeps over the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from forebay.clock import Clock
from forebay.errors import NoProgressError, PeerFailedError
from forebay.learner.gang.frames import Frame
from forebay.learner.gang.link import Introduction, Link

logger = logging.getLogger(__name__)

_BEAT = "beat"
_BEAT_S = 0.5
_REPORT_S = 5.0
_FAREWELL_S = 0.5
_STALL_S = 3.0


class Doing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process says of itself twice a second.

    Args:
        what: What its training thread does.
        for_s: Since when, in seconds.
        limit_s: How long that may take; None for ever.
        stop: Whether it was asked to stop.
    """

    what: str
    for_s: float
    limit_s: float | None
    stop: bool


class Ended(NamedTuple):
    """Why the gang ends.

    Attributes:
        cause: What a user should know.
        exit_code: 4 if a process is gone, 3 if nothing moves.
    """

    cause: str
    exit_code: int


class Gang:
    """The processes of one learner, seen from one of them; `Peers` of the others.

    A collective that waits for a process that is gone cannot be interrupted. So each process watches the
    others in a thread of its own, and when one is lost, `on_end` ends this process too.

    The watching thread consumes: heartbeats. Waits for: the next half second. Unblocked by: time. Produces:
    heartbeats, a warning after 5 s of silence, and the end after `silent_s`.

    Args:
        me: This process.
        links: To whom it is connected, by their number: process 0 to all others, those to process 0 alone.
        clock: Source of time.
        silent_s: Silence after which a process counts as gone.
        on_end: Ends this process; called at most once, from a thread.
    """

    def __init__(
        self,
        me: Introduction,
        links: Mapping[int, Callable[[Gang], Link]],
        clock: Clock,
        *,
        silent_s: float,
        on_end: Callable[[Ended], None],
    ) -> None:
        self.me = me
        self.stop_asked = False
        self._clock = clock
        self._silent_s = silent_s
        self._on_end = on_end
        self._ending = threading.Lock()
        self._ended: Ended | None = None
        self._closed = threading.Event()
        self._warned: set[int] = set()
        self._said: dict[int, Doing] = {}
        self._own_stop = False
        self._doing: tuple[str, float, float | None] = ("starts", clock.monotonic_s(), None)
        self._links: dict[int, Link] = {}
        self._links |= {number: make(self) for number, make in sorted(links.items())}
        self._watcher = threading.Thread(target=self._watch, name="gang-watch", daemon=True)
        self._watcher.start()

    @property
    def process(self) -> int:
        """Number of this process; 0 leads."""
        return self.me.process

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return self.me.num_processes

    def gather(self, topic: str, value: bytes) -> list[bytes]:
        """Return what every process gave to process 0; see `Peers.gather`."""
        if self.process:
            self._links[0].send(Frame(topic, value))
            return []
        return [value, *(link.receive(topic).body for link in self._links.values())]

    def broadcast(self, topic: str, value: bytes) -> bytes:
        """Return what process 0 gave; see `Peers.broadcast`."""
        if self.process:
            return self._links[0].receive(topic).body
        self.tell(Frame(topic, value))
        return value

    def barrier(self, topic: str) -> None:
        """Wait until every process is here: what follows may have deadlines of its own."""
        self.gather(topic, b"")
        self.broadcast(topic, b"")

    def tell(self, frame: Frame) -> None:
        """Send a frame to everybody that this process is connected to.

        Raises:
            PeerFailedError: One of them is gone.
        """
        for link in self._links.values():
            link.send(frame)

    def send(self, frame: Frame, process: int) -> None:
        """Send a frame to one process.

        Raises:
            PeerFailedError: It is gone.
        """
        self._links[process].send(frame)

    def hear(self, topic: str, process: int = 0, check: Callable[[], None] = lambda: None) -> Frame:
        """Return the next frame of a topic from a process.

        Args:
            topic: Of the frame.
            process: Who sends it.
            check: Called twice a second while it has not come; what it raises ends the wait.

        Raises:
            PeerFailedError: It is gone, or has said farewell.
        """
        return self._links[process].receive(topic, check)

    def now(self, what: str, limit_s: float | None = None) -> None:
        """Note what the training thread does from now on, and how long that may take."""
        self._doing = (what, self._clock.monotonic_s(), limit_s)

    def ask_to_stop(self) -> None:
        """Have process 0 told, with the next heartbeat, that the run is to stop; safe in a signal handler."""
        self._own_stop = True

    def took(self, peer: Introduction, frame: Frame) -> bool:
        """Take a frame that concerns the gang itself; return whether it does."""
        if frame.topic != _BEAT:
            return False
        said = msgspec.json.decode(frame.body, type=Doing)
        self._said[peer.process] = said
        self.stop_asked = self.stop_asked or said.stop
        return True

    def end(self, cause: str, exit_code: int = PeerFailedError.exit_code) -> None:
        """End this process and, through them noticing it, all others."""
        with self._ending:
            if self._ended is not None or self._closed.is_set():
                return
            self._ended = Ended(cause, exit_code)
        # Whoever is lost may also be why a farewell to it never ends.
        farewells = [
            threading.Thread(target=link.close, args=(cause,), daemon=True) for link in self._links.values()
        ]
        for farewell in farewells:
            farewell.start()
        for farewell in farewells:
            farewell.join(_FAREWELL_S)
        self._on_end(self._ended)

    def close(self, failure: str | None = None) -> None:
        """Say farewell to the others, or why this process fails."""
        self._closed.set()
        for link in self._links.values():
            link.close(failure)

    def settle(self, timeout_s: float) -> None:
        """Give the watch time to find that a lost process is why the training thread failed, if it is."""
        self._closed.wait(timeout_s)

    def _watch(self) -> None:
        looked_s = self._clock.monotonic_s()
        self._beat()  # at once: the others wait for it to know that all are here
        while not self._closed.wait(_BEAT_S):
            before_s, looked_s = looked_s, self._clock.monotonic_s()
            if looked_s - before_s > _STALL_S:
                # This process stood still, a machine that was paused for instance: it could hear nobody.
                for link in self._links.values():
                    link.hear_from_now()
            self._beat()
            for link in self._links.values():
                self._judge(link)
            self._judge_itself()

    def _judge_itself(self) -> None:
        what, since_s, limit_s = self._doing
        for_s = self._clock.monotonic_s() - since_s
        if limit_s is not None and for_s > limit_s:
            self.end(
                f"nothing moved for {for_s:.0f} s: this process {what}; {self._others()} (limit "
                f"learner.no_progress_s={limit_s:g}). Raise it if a step or a save may take so long.",
                exit_code=NoProgressError.exit_code,
            )

    def _beat(self) -> None:
        what, since_s, limit_s = self._doing
        said = Doing(what, self._clock.monotonic_s() - since_s, limit_s, self._own_stop)
        frame = Frame(_BEAT, msgspec.json.encode(said))
        for link in self._links.values():
            link.beat(frame)

    def _judge(self, link: Link) -> None:
        silent_s, number = link.silent_s, link.peer.process
        if silent_s > self._silent_s:
            limit = f"limit learner.peer_silent_s={self._silent_s:g}"
            link.lose(f"nothing was heard of it for {silent_s:.0f} s ({limit}). See its host, and its log.")
        elif silent_s > _REPORT_S and number not in self._warned:
            self._warned.add(number)
            logger.warning("%s has not been heard of for %.0f s", link.peer.spelled(), silent_s)
        elif silent_s <= _REPORT_S:
            self._warned.discard(number)

    def _others(self) -> str:
        return "; ".join(f"process {k} {said.what} for {said.for_s:.0f} s" for k, said in self._said.items())
