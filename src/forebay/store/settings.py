"""Settings of the store, and the sizes that can never work."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.store.address import is_loopback, parse_address
from forebay.store.protocol import Durability

_GIB = 1 << 30


class StoreSettings(BaseModel):
    """Where tasks and trajectories are kept between processes, how durably, and how many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["memory", "lmdb", "redis"] = Field(
        "lmdb",
        description="lmdb: durable, several processes on one host. redis: a Redis or Valkey server, for "
        "several hosts. memory: one process, for tests.",
    )
    path: Path | None = Field(None, description="Directory of an lmdb store; the run directory's by default.")
    durability: Durability = Field(
        "fsync",
        description="fsync: survives power loss. os: survives kill -9 of every process, not power loss. A "
        "redis server needs appendfsync always for fsync, everysec for os.",
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
        description="Addresses that the lmdb file is mapped to at first; doubled when it is full. No file is "
        "larger than what it holds.",
    )
    side_file_bytes: int = Field(
        1 << 20, ge=0, description="Larger trajectories get a file of their own, outside the lmdb file."
    )
    max_trajectory_bytes: int = Field(
        256 << 20, ge=4096, le=_GIB, description="Larger trajectories are refused."
    )
    url: str | None = Field(
        None,
        description="redis: the server, redis://HOST:PORT/DATABASE, or rediss:// for TLS; several hosts, or "
        "redis+sentinel://HOSTS/SERVICE/DATABASE, for fail-over. No password here.",
    )
    username: str | None = Field(None, description="redis: user of the server's access list.")
    password_env: str | None = Field(
        None, description="redis: environment variable that holds the password, of every process of the run."
    )
    tls_ca_file: Path | None = Field(
        None, description="redis: certificates trusted to sign the server's; the system's by default."
    )
    tls_cert_file: Path | None = Field(
        None, description="redis: client certificate, if the server asks for one."
    )
    tls_key_file: Path | None = Field(None, description="redis: private key of the client certificate.")
    allow_plaintext: bool = Field(
        False, description="redis: allow redis:// to another host: everybody on the network can read along."
    )
    min_replicas: int = Field(
        0, ge=0, le=16, description="redis: replicas that must have a write before it is acknowledged."
    )
    replica_timeout_s: float = Field(
        5.0, gt=0.0, le=60.0, description="redis: how long a write waits for its replicas."
    )
    deadline_s: float = Field(
        30.0,
        gt=0.0,
        le=3600.0,
        description="redis: how long a call goes on reconnecting to a server that is away.",
    )

    @model_validator(mode="after")
    def _knows_its_server(self) -> Self:
        if self.engine != "redis":
            return self
        if self.url is None:
            raise ValueError('store.engine="redis" needs store.url, e.g. "redis://127.0.0.1:6379/0".')
        try:
            address = parse_address(self.url)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if not address.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise ValueError(f"store.tls_* are for rediss:// addresses, but store.url is {self.url}.")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError(
                "store.tls_cert_file and store.tls_key_file belong together: set both or neither."
            )
        if not (address.tls or address.is_loopback or self.allow_plaintext):
            others = ", ".join(host for host, _ in address.servers if not is_loopback(host))
            raise ValueError(
                f"store.url {self.url} would send every trajectory, and the password, in the clear to "
                f"{others}. Use rediss://, or set store.allow_plaintext=true on a network you trust."
            )
        if self.username is not None and self.password_env is None:
            raise ValueError("store.username needs store.password_env: the variable that holds its password.")
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
