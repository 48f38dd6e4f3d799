"""Settings of batching, and what they exclude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forebay.errors import ConfigError

Oversize = Literal["error", "drop", "truncate"]


class BatchingSettings(BaseModel):
    """What a batch is made of, and the few shapes that it is packed into."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int = Field(8, ge=1, description="Groups of one batch.")
    group_size: int = Field(
        4,
        ge=1,
        description="Trajectories of one group, compared with one another; one alone needs a critic.",
    )
    min_group_size: int = Field(
        2,
        ge=1,
        description="Members that suffice once a group's deadline has passed; one alone has no baseline. 1 if"
        " group_size is 1.",
    )
    minibatches: int = Field(1, ge=1, description="Optimizer updates that a batch's groups are split into.")
    epochs: int = Field(1, ge=1, description="Times that a batch is gone through.")
    max_length: int = Field(512, ge=2, description="Longest trained sequence, tokens.")
    oversize: Oversize = Field(
        "error",
        description="What happens to a longer one: end the run, drop it, or cut its end off. Counted.",
    )
    mask_truncated: bool = Field(
        False,
        description="Leave trajectories that a limit ended untrained; their rewards stay in the baseline.",
    )
    row_length: int | None = Field(
        None,
        ge=2,
        description="Tokens of a packed row; default max_length. Longer rows pack tighter: several episodes"
        " of max_length, but no more than a device's share of a batch.",
    )
    rows: int = Field(4, ge=1, description="Rows of the largest micro-batch: bounds the memory of a step.")
    min_row_length: int = Field(
        16, ge=2, description="Shorter rows, for what is left over, are multiples of this, tokens."
    )
    max_programs: int = Field(8, ge=1, le=64, description="Most batch shapes, each compiled once.")
    buckets: tuple[tuple[int, int], ...] = Field(
        (),
        description="Shapes as [rows, row length], for instance those that `forebay config ladder` prints;"
        " default: parts of one.",
    )
    prefetch: int = Field(1, ge=0, description="Batches packed ahead of the one that is trained.")

    @property
    def packed_length(self) -> int:
        """Tokens of the longest row."""
        return self.row_length if self.row_length is not None else self.max_length

    @property
    def updates_per_batch(self) -> int:
        """Optimizer updates, and so policy versions, that one batch makes."""
        return self.minibatches * self.epochs

    @field_validator("buckets", mode="before")
    @classmethod
    def _from_arrays(cls, given: Any) -> Any:
        # The validator below hands a file's arrays on as lists, which strictness does not take for tuples.
        if isinstance(given, list):
            return tuple(tuple(shape) if isinstance(shape, list) else shape for shape in given)
        return given

    @model_validator(mode="before")
    @classmethod
    def _one_alone_suffices(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("group_size") == 1:
            return {"min_group_size": 1, **given}
        return given

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        try:
            self._check()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _check(self) -> None:
        if self.min_group_size > self.group_size:
            raise ConfigError(
                "batching.min_group_size exceeds the group",
                got=self.min_group_size,
                limit=self.group_size,
                remedy="Lower batching.min_group_size or raise batching.group_size.",
            )
        if self.groups % self.minibatches:
            divisors = [n for n in range(1, self.groups + 1) if self.groups % n == 0]
            raise ConfigError(
                "minibatches hold whole groups, all equally many",
                got=f"{self.groups} groups in {self.minibatches} minibatches",
                limit=f"minibatches in {divisors}",
                remedy="Change batching.minibatches or batching.groups.",
            )
        longest = max((length for _, length in self.buckets), default=self.packed_length)
        if self.max_length > longest:
            raise ConfigError(
                "a sequence of batching.max_length fits no row",
                got=f"max_length={self.max_length}",
                limit=f"{longest} tokens in a row",
                remedy="Raise batching.row_length (or the longest of batching.buckets), or lower max_length.",
            )
        if self.min_row_length > self.packed_length:
            raise ConfigError(
                "batching.min_row_length exceeds the longest row",
                got=self.min_row_length,
                limit=self.packed_length,
                remedy="Lower batching.min_row_length.",
            )
        self._check_buckets()

    def _check_buckets(self) -> None:
        if any(rows < 1 or length < 2 for rows, length in self.buckets):
            raise ConfigError("a bucket needs at least 1 row of 2 tokens", got=list(self.buckets))
        if len(set(self.buckets)) > self.max_programs:
            raise ConfigError(
                "batching.buckets has more shapes than programs",
                got=len(set(self.buckets)),
                limit=f"max_programs={self.max_programs}",
                remedy="Raise batching.max_programs or remove buckets.",
            )
