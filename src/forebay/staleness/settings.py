"""Settings of the staleness rule, and the credit that follows from them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

OnStale = Literal["wait", "drop", "mask"]


class StalenessSettings(BaseModel):
    """How far behind the learner an actor's tokens may be, and what happens to those that are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_staleness: int = Field(
        8, ge=0, le=10_000, description="Oldest trained token, in versions; 0 is synchronous."
    )
    on_stale: OnStale = Field(
        "wait", description="wait for urgent groups, drop late ones, or mask their old tokens."
    )
    credit: int | None = Field(
        None,
        ge=1,
        description="Batches in flight; default (max_staleness + 1) // optimizer updates per batch.",
    )
    share_patience_s: float = Field(
        120.0,
        gt=0,
        description="Longest wait for an environment of which no group settles, or 1.5 times as long as its "
        "groups took; then the others fill its share of the batches, which is counted.",
    )

    @model_validator(mode="after")
    def _credit_can_be_trained(self) -> Self:
        if self.credit is not None and self.on_stale != "mask" and self.credit > self.max_staleness + 1:
            raise ValueError(
                f"staleness.credit={self.credit} exceeds max_staleness + 1 = {self.max_staleness + 1}: the "
                f"last batch in flight would always be too old. Lower credit or raise max_staleness."
            )
        return self

    @property
    def batches_in_flight(self) -> int:
        """The credit with one optimizer update per batch, and the most there can be with several."""
        return credit_batches(self)


def credit_batches(settings: StalenessSettings, updates_per_batch: int = 1) -> int:
    """Return how many batches may be outstanding at once: the credit.

    With U optimizer updates per batch and C batches in flight, the last update of the youngest batch
    differentiates a version C * U - 1 newer than the one its groups began with. Unless set, C is therefore
    floor((max_staleness + 1) / U).

    Example:
        >>> credit_batches(StalenessSettings(max_staleness=8)), credit_batches(StalenessSettings(), 4)
        (9, 2)
    """
    if settings.credit is not None:
        return settings.credit
    return max(1, (settings.max_staleness + 1) // updates_per_batch)
