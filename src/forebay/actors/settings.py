"""Settings of the actor pool."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forebay.trajectory import Sampling

DEFAULT_EPISODES: Final = 128
_MOST_EPISODES: Final = 10_000
# Of all processes together.
_FIRST_EPISODES: Final = 16


class ActorSettings(BaseModel):
    """How many episodes run, how they are sampled, and what happens when something does not answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: int = Field(1, ge=1, description="Actor processes.")
    episodes_per_process: int | Literal["auto"] = Field(
        DEFAULT_EPISODES,
        description='Episodes alive at once in a process: so many, 10000 at most, or "auto" for as many as '
        "keep the learner fed, and no more than the environments and the generator serve.",
    )
    max_episodes_per_process: int = Field(
        1024,
        ge=1,
        le=_MOST_EPISODES,
        description='Most episodes alive at once in a process where episodes_per_process is "auto".',
    )
    control_period_s: float = Field(
        0.5,
        gt=0,
        le=10,
        description='Time between two looks at the store where episodes_per_process is "auto".',
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Divisor of the logits when sampling.")
    max_turn_tokens: int = Field(256, ge=1, description="Most tokens of one model turn.")
    lease_ttl_s: float = Field(30.0, gt=0, description="Time after which a silent actor loses its work.")
    heartbeat_s: float = Field(5.0, gt=0, description="Time between two renewals of the leases.")
    poll_s: float = Field(0.05, gt=0, description="First wait for new work; doubles up to poll_max_s.")
    poll_max_s: float = Field(0.5, gt=0, description="Longest wait between two looks for new work.")
    version_period_s: float = Field(
        0.5, gt=0, description="Time between two looks at the generator's version."
    )
    put_margin_s: float = Field(
        0.5, ge=0, description="An episode ends this long before its group's deadline."
    )
    put_threads: int = Field(
        4,
        ge=1,
        le=64,
        description="Large results (a mebibyte and more) and failures written to the store at once; smaller "
        "results go together, in a thread of their own.",
    )
    cancel_grace_s: float = Field(
        1.0, gt=0, description="Time that cancelled environment code gets to return."
    )
    backoff_s: float = Field(
        0.2, gt=0, description="First wait after a failed peer; doubles up to backoff_max_s."
    )
    backoff_max_s: float = Field(10.0, gt=0, description="Longest wait after a failed peer.")
    environment_backoff_max_s: float = Field(
        30.0,
        gt=0,
        description="Longest rest of a member whose environment keeps failing, before it is tried again; "
        "begins at backoff_s and doubles. Its place is free meanwhile.",
    )
    peer_patience_s: float = Field(
        120.0, gt=0, description="A peer that fails for this long ends the process."
    )
    drain_s: float = Field(30.0, ge=0, description="Time that running episodes get to finish after SIGTERM.")
    blocked_s: float = Field(1.0, gt=0, description="An event loop blocked this long is reported.")
    blocked_limit_s: float = Field(
        60.0, gt=0, description="An event loop blocked this long ends the process."
    )
    stats_queue: int = Field(
        4096, ge=1, description="Episode statistics kept for the reporter; the rest is lost."
    )

    @field_validator("episodes_per_process", mode="before")
    @classmethod
    def _is_a_number_or_auto(cls, value: object) -> object:
        """Say once what is wrong, not once for each type that it could have been."""
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_EPISODES
        if not whole and value != "auto":
            raise ValueError(
                f'should be a whole number from 1 to {_MOST_EPISODES}, or "auto", got {value!r:.40}'
            )
        return value

    @model_validator(mode="after")
    def _leases_outlive_heartbeats(self) -> Self:
        if self.lease_ttl_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"actors.lease_ttl_s={self.lease_ttl_s} is less than two heartbeats of {self.heartbeat_s} s: "
                f"one late heartbeat would lose every lease. Raise lease_ttl_s or lower heartbeat_s."
            )
        return self

    @property
    def controlled(self) -> bool:
        """Whether the number of episodes is found while they run."""
        return self.episodes_per_process == "auto"

    @property
    def most_episodes(self) -> int:
        """The most episodes that are ever alive at once in a process."""
        if isinstance(self.episodes_per_process, int):
            return self.episodes_per_process
        return self.max_episodes_per_process

    @property
    def first_episodes(self) -> int:
        """Episodes alive at once in the beginning, of all processes, where their number is found later."""
        return min(_FIRST_EPISODES, self.processes * self.most_episodes)

    @property
    def evaluation_episodes(self) -> int:
        """Episodes of an evaluation at once, which nobody controls."""
        return min(DEFAULT_EPISODES, self.most_episodes) if self.controlled else self.most_episodes

    @property
    def sampling(self) -> Sampling:
        """The distribution to sample; nothing truncates it, so that it can be trained."""
        return Sampling(temperature=self.temperature)
