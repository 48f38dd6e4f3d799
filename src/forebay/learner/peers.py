"""The processes of one learner, as the parts of it that run in each of them see one another."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """What a process of a learner says to the others. All of them make the same calls in the same order.

    Calls of one topic come from one thread at a time; calls of different topics do not wait for one another.
    """

    @property
    def process(self) -> int:
        """Number of this process; 0 leads."""
        ...

    @property
    def num_processes(self) -> int:
        """How many there are."""
        ...

    def gather(self, topic: str, value: bytes) -> list[bytes]:
        """Return what every process gave, in their order, to process 0, and nothing to the others.

        Raises:
            PeerFailedError: One of them is gone.
        """
        ...

    def broadcast(self, topic: str, value: bytes) -> bytes:
        """Return what process 0 gave to every process.

        Raises:
            PeerFailedError: One of them is gone.
        """
        ...


class Alone:
    """A learner of one process."""

    process = 0
    num_processes = 1

    def gather(self, topic: str, value: bytes) -> list[bytes]:
        """Return the own value; see `Peers.gather`."""
        return [value]

    def broadcast(self, topic: str, value: bytes) -> bytes:
        """Return the own value; see `Peers.broadcast`."""
        return value


ALONE = Alone()
