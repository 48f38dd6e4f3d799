"""Everyone who is told about a trained batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forebay.learner.feed import JournaledBatch
from forebay.learner.train_step import StepStats
from forebay.trajectory import PolicyVersion


class Account(Protocol):
    """What is told about every batch that was trained."""

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Account for a batch.

        Args:
            batch: What was trained.
            version: The version that it made.
            stats: One per optimizer update that was not empty.
            step_s: Time of its updates.
        """
        ...


class Accounts:
    """Several accounts as one.

    Args:
        accounts: Told in this order.
    """

    def __init__(self, *accounts: Account) -> None:
        self._accounts = accounts

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Tell everyone about a batch; see `Account.add`."""
        for account in self._accounts:
            account.add(batch, version, stats, step_s)
