"""Settings of the store, and the sizes that can never work."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.store.protocol import Durability

_GIB = 1 << 30


class StoreSettings(BaseModel):
    """Where tasks and trajectories are kept between processes, how durably, and how many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["memory", "lmdb"] = Field(
        "lmdb", description="lmdb: durable, several processes on one host. memory: one process, for tests."
    )
    path: Path | None = Field(None, description="Directory of an lmdb store; the run directory's by default.")
    durability: Durability = Field(
        "fsync",
        description="fsync: survives power loss. os: survives kill -9 of every process, not power loss.",
    )
    capacity_groups: int = Field(4096, ge=1, description="Most groups dispatched and not yet recorded.")
    capacity_bytes: int = Field(
        4 * _GIB, ge=1, description="Most bytes stored or reserved for groups not yet recorded."
    )
    retained_capacity_bytes: int = Field(
        16 * _GIB, ge=1, description="Most bytes of recorded groups that no verified checkpoint covers yet."
    )
    map_bytes: int = Field(
        64 * _GIB,
        ge=1 << 20,
        description="Largest size of the lmdb file; sparse, so only what is used counts.",
    )
    side_file_bytes: int = Field(
        1 << 20, ge=0, description="Larger trajectories get a file of their own, outside the lmdb file."
    )
    max_trajectory_bytes: int = Field(
        256 << 20, ge=4096, le=_GIB, description="Larger trajectories are refused."
    )

    @model_validator(mode="after")
    def _fits_its_file(self) -> Self:
        needed = self.capacity_bytes + self.retained_capacity_bytes
        if self.engine == "lmdb" and self.map_bytes < needed:
            raise ValueError(
                f"store.map_bytes={self.map_bytes} is less than capacity_bytes + retained_capacity_bytes = "
                f"{self.capacity_bytes} + {self.retained_capacity_bytes} = {needed}: the file would be full "
                f"before the store is. Raise store.map_bytes (it is sparse) or lower the capacities."
            )
        return self


def check_capacity(
    settings: StoreSettings,
    *,
    groups_per_batch: int,
    batches_in_flight: int,
    member_bytes: int,
    group_size: int,
    checkpoint_every: int,
    checkpoints_kept: int = 1,
) -> None:
    """Refuse capacities that would brake the learner for ever.

    Args:
        settings: The store's.
        groups_per_batch: Groups that one optimizer batch takes.
        batches_in_flight: Batches that may be outstanding at once.
        member_bytes: Bytes reserved for one trajectory.
        group_size: Trajectories of a group.
        checkpoint_every: Batches between two checkpoints; consumed work is kept until one covers it.
        checkpoints_kept: Checkpoints retained; work is forgotten up to the oldest.

    Raises:
        ConfigError: A capacity is too small; the message holds the arithmetic and the remedy.
    """
    groups = groups_per_batch * batches_in_flight
    if settings.capacity_groups < groups:
        raise ConfigError(
            f"{batches_in_flight} batches in flight of {groups_per_batch} groups can never fit the store",
            got=f"store.capacity_groups={settings.capacity_groups}",
            limit=f">= {batches_in_flight} x {groups_per_batch} = {groups}",
            remedy=f"Set store.capacity_groups={groups}, or lower batching.groups or max_staleness.",
        )
    group_bytes = group_size * member_bytes
    if settings.capacity_bytes < groups * group_bytes:
        raise ConfigError(
            "the bytes reserved for the batches in flight can never fit the store",
            got=f"store.capacity_bytes={settings.capacity_bytes}",
            limit=f">= {groups} groups x {group_size} x {member_bytes} bytes = {groups * group_bytes}",
            remedy="Raise store.capacity_bytes, or lower the reservation, batching.groups or max_staleness.",
        )
    batches = checkpoints_kept * checkpoint_every + 1
    retained = batches * groups_per_batch * group_bytes
    if settings.retained_capacity_bytes < retained:
        raise ConfigError(
            "the work consumed between checkpoints can never fit the store",
            got=f"store.retained_capacity_bytes={settings.retained_capacity_bytes}",
            limit=f">= ({checkpoints_kept} x {checkpoint_every} + 1) batches x {groups_per_batch} groups x "
            f"{group_bytes} bytes = {retained}",
            remedy="Checkpoint more often, keep fewer checkpoints, or raise store.retained_capacity_bytes.",
        )
