"""What a process that does not lead does: what process 0 says, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from forebay.errors import WireError
from forebay.learner.bare import BareSpeed
from forebay.learner.feed import JournaledBatch
from forebay.learner.gang.batches import BATCH, ROWS, decode_batch, decode_rows
from forebay.learner.gang.gang import Gang
from forebay.learner.gang.lead import ORDER, Order, spelled
from forebay.learner.loop import Learner


class Follower:
    """Follows the orders of process 0.

    Consumes: orders, batches. Waits for: process 0 (its silence ends this process). Unblocked by: an order.
    Produces: its part of every step, checkpoint and copy of the parameters.

    Args:
        gang: The processes.
        learner: At the state that all of them have; its `publish` and `save` give this process's part.
        bare: Takes part in timing the step.
        limit_s: How long all processes may take to follow an order.
        check: Raises what this process's part failed with in the background; called while it waits too, as
            process 0 may be waiting for that part.
    """

    def __init__(
        self,
        gang: Gang,
        learner: Learner,
        bare: BareSpeed,
        limit_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._gang = gang
        self._learner = learner
        self._bare = bare
        self._limit_s = limit_s
        self._check = check

    def follow(self) -> None:
        """Do what process 0 says until it says that the run ends.

        Raises:
            WireError: Orders and batches do not fit together.
            ForebayError: What ended this process's part.
        """
        while True:
            self._gang.now("waits for an order")
            order = msgspec.json.decode(self._gang.hear(ORDER, check=self._check).body, type=Order)
            self._gang.now(spelled(order), self._limit_s)
            self._check()
            if order.what == "end":
                # Process 0 may have more to do before all leave: for that there is no limit.
                self._gang.now("has finished")
                return
            self._obey(order)

    def _obey(self, order: Order) -> None:
        learner = self._learner
        if order.what == "train":
            learner.train(self._next_batch(order.step))
        elif order.what == "gather":
            learner.publish()
        elif order.what == "save":
            learner.checkpoint()
        elif order.what == "calibrate":
            rows = decode_rows(self._gang.hear(ROWS))
            learner.state = self._bare.calibrate(learner.programs, learner.state, rows)

    def _next_batch(self, step: int) -> JournaledBatch:
        batch = decode_batch(self._gang.hear(BATCH))
        if batch.entry.step != step:
            raise WireError(
                "order", "a batch is not the one to be trained now", got=batch.entry.step, limit=step
            )
        return batch


class NoAccount:
    """Keeps no account: process 0 does."""

    def add(self, *batch: Any) -> None:
        """Do nothing."""
