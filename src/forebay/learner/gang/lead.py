"""What process 0 has the others do before it does the same; and a learner of one process, which need not.

An order names one arrow of the loop. Whatever runs on the devices runs in every process, in the order in
which process 0 gave its orders, so that collectives meet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol

import msgspec

from forebay.batching.packing import Bucket
from forebay.batching.rows import TrainRows
from forebay.learner.feed import JournaledBatch
from forebay.learner.gang.batches import encode_batch, encode_rows
from forebay.learner.gang.frames import Frame
from forebay.learner.gang.gang import Gang
from forebay.learner.gang.gathering import Gathering
from forebay.learner.peers import ALONE, Peers
from forebay.learner.train_step import snapshot
from forebay.models.params import Params

ORDER = "order"
INCARNATION = "incarnation"
COMPILED = "compiled"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all processes do next.

    Args:
        what: Train the next batch, hand over the parameters, save, time the step, or end.
        step: The version that training makes, or that is saved or handed over; 0 where it does not matter.
    """

    what: Literal["train", "gather", "save", "calibrate", "end"]
    step: int = 0


class Lead(Protocol):
    """The other processes of a learner, as the training session sees them."""

    @property
    def peers(self) -> Peers:
        """All processes."""
        ...

    def stop_asked(self) -> bool:
        """Return whether another process was asked to stop."""
        ...

    def ready(self) -> None:
        """Wait until every process has compiled: the first collective waits half a minute only."""
        ...

    def incarnation(self, incarnation: int) -> None:
        """Tell which incarnation of the learner this is."""
        ...

    def share(self, batch: JournaledBatch) -> None:
        """Send a batch ahead."""
        ...

    def train(self, batch: JournaledBatch) -> None:
        """Have the batch that was shared earliest trained."""
        ...

    def waits(self) -> None:
        """Note that the training thread waits for a batch."""
        ...

    def copy(self, params: Params) -> Any:
        """Begin to copy parameters to host memory; they may be donated then."""
        ...

    def copied(self, copy: Any) -> Params:
        """Return the parameters that a copy is of, waiting for it."""
        ...

    def save(self, step: int) -> None:
        """Have the state saved."""
        ...

    def calibrate(self, rows: dict[Bucket, TrainRows]) -> None:
        """Have the step timed on rows."""
        ...

    def end(self) -> None:
        """Have everybody finish."""
        ...


class Solo:
    """A learner of one process: nobody is told anything. See `Lead`."""

    peers = ALONE

    def stop_asked(self) -> bool:
        """Return False."""
        return False

    def ready(self) -> None:
        """Do nothing."""

    def incarnation(self, incarnation: int) -> None:
        """Do nothing."""

    def share(self, batch: JournaledBatch) -> None:
        """Do nothing."""

    def train(self, batch: JournaledBatch) -> None:
        """Do nothing."""

    def waits(self) -> None:
        """Do nothing."""

    def copy(self, params: Params) -> Params:
        """Return a host copy of the parameters."""
        return snapshot(params)

    def copied(self, copy: Params) -> Params:
        """Return the copy itself."""
        return copy

    def save(self, step: int) -> None:
        """Do nothing."""

    def calibrate(self, rows: dict[Bucket, TrainRows]) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Leader:
    """Process 0 of a learner of several. See `Lead`.

    Args:
        gang: The processes.
        abstract: Shapes and types of the parameters.
        limit_s: How long all of them may take to follow an order.
        on_start: Runs first in the thread that gathers parameters.
    """

    def __init__(
        self, gang: Gang, abstract: Params, limit_s: float, on_start: Callable[[], None] = lambda: None
    ) -> None:
        self.peers = gang
        self._gang = gang
        self._limit_s = limit_s
        self._gathering = Gathering(gang, abstract, on_start)

    def stop_asked(self) -> bool:
        """Return whether another process was asked to stop."""
        return self._gang.stop_asked

    def ready(self) -> None:
        """Wait until every process has compiled."""
        self._gang.barrier(COMPILED)

    def incarnation(self, incarnation: int) -> None:
        """Tell which incarnation of the learner this is."""
        self._gang.broadcast(INCARNATION, str(incarnation).encode())

    def share(self, batch: JournaledBatch) -> None:
        """Send a batch ahead."""
        self._gang.tell(encode_batch(batch))

    def train(self, batch: JournaledBatch) -> None:
        """Have the batch that was shared earliest trained."""
        self._order(Order("train", batch.entry.step))

    def waits(self) -> None:
        """Note that the training thread waits for a batch; who may be to blame, its own watchdog knows."""
        self._gang.now("waits for a batch")

    def copy(self, params: Params) -> Future[Params]:
        """Begin to gather the parameters of all processes."""
        self._order(Order("gather"))
        return self._gathering.start(params)

    def copied(self, copy: Future[Params]) -> Params:
        """Return the gathered parameters."""
        return copy.result()

    def save(self, step: int) -> None:
        """Have the state saved."""
        self._order(Order("save", step))

    def calibrate(self, rows: dict[Bucket, TrainRows]) -> None:
        """Have the step timed on rows."""
        self._gang.tell(encode_rows(rows))
        self._order(Order("calibrate"))

    def end(self) -> None:
        """Have everybody finish."""
        self._order(Order("end"))
        self._gathering.close()
        self._gang.now("finishes")

    def _order(self, order: Order) -> None:
        self._gang.now(spelled(order), self._limit_s)
        self._gang.tell(Frame(ORDER, msgspec.json.encode(order)))


def spelled(order: Order) -> str:
    """Name an order for a message.

    Example:
        >>> spelled(Order("train", 12))
        'does: train step 12'
    """
    return f"does: {order.what}" + (f" step {order.step}" if order.step else "")
