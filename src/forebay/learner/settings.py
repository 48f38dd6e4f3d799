"""Settings of the learner's loop; no JAX is imported here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forebay.errors import ConfigError

_BUCKET: Final = re.compile(r"(?:s3|gs)://[^/\s]+(?:/\S*)?")


class LearnerSettings(BaseModel):
    """How long the learner trains, and when it publishes, saves and gives up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(100, ge=1, description="Batches to train.")
    max_time_s: float | None = Field(
        None, gt=0, description="End after this long, counted from the first batch."
    )
    publish_every: int = Field(1, ge=1, description="Batches between published versions.")
    checkpoint_every: int = Field(20, ge=1, description="Batches between checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept, besides the best one.")
    checkpoint_path: str | None = Field(
        None,
        description="Where checkpoints go, each run's below its id: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "or a directory, from the root on; by default the run directory.",
    )
    checkpoint_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Longest wait for a checkpoint to be written, or for a bucket that cannot be reached.",
    )
    eval_every: int = Field(0, ge=0, description="Batches between held-out evaluations; 0 is never.")
    eval_tasks: int = Field(64, ge=1, description="Held-out tasks of one evaluation.")
    warmup_steps: int = Field(
        1, ge=0, description="First batches that the utilization figures leave out, besides compilation."
    )
    max_nonfinite_steps: int = Field(
        3, ge=1, description="Steps with a non-finite loss in a row that end the run."
    )
    no_progress_s: float = Field(600.0, gt=0, description="Longest time without a trained batch.")
    sample_every: int = Field(
        5, ge=0, description="Batches from one whose trajectories are sampled to the next; 0 is never."
    )
    samples: int = Field(
        2, ge=1, le=16, description="Trajectories kept of a sampled batch, for people to read."
    )
    processes: int = Field(
        1,
        ge=1,
        description="Processes of the learner, each with an equal part of the mesh's devices; forebay train "
        "starts them on this machine, forebay learn --process-id one of them on another.",
    )
    start_s: float = Field(
        600.0, gt=0, description="Longest wait of the learner's processes for one another at the start."
    )
    peer_silent_s: float = Field(
        15.0,
        gt=5,
        description="Silence after which a process of the learner counts as gone, and all of them end.",
    )
    keep_consumed: bool = Field(
        False,
        description="Keep every trained trajectory and the whole journal, so that the run can be replayed.",
    )

    @field_validator("checkpoint_path")
    @classmethod
    def _is_a_place(cls, path: str | None) -> str | None:
        is_url = path is not None and ("://" in path or path.startswith(("s3:", "gs:")))
        if path is not None and is_url and not is_bucket(path):
            raise ValueError(
                f"learner.checkpoint_path={path!r} names nothing that checkpoints can go to. "
                "Give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or a directory."
            )
        if path is not None and not is_bucket(path) and not Path(path).is_absolute():
            raise ValueError(
                f"learner.checkpoint_path={path!r} is another place in every working directory. "
                f"Give it from the root on: {Path(path).absolute()}."
            )
        return path

    @model_validator(mode="after")
    def _publishes_before_it_ends(self) -> Self:
        if self.publish_every > self.steps:
            raise ValueError(
                f"learner.publish_every={self.publish_every} exceeds learner.steps={self.steps}: the run "
                f"would end before its first publication. Lower publish_every."
            )
        return self


def is_bucket(path: str) -> bool:
    """Return whether a place for checkpoints is a bucket.

    Example:
        >>> is_bucket("s3://mine/runs"), is_bucket("gs://"), is_bucket("/mnt/checkpoints")
        (True, False, False)
    """
    return _BUCKET.fullmatch(path) is not None


def check_processes(devices: int, processes: int) -> None:
    """Refuse a mesh that the processes of a learner cannot share evenly.

    Raises:
        ConfigError: With the arithmetic.
    """
    if devices % processes:
        raise ConfigError(
            "every process of the learner holds equally many devices of the mesh",
            got=f"a mesh of {devices} devices for {processes} processes",
            limit=f"a multiple of {processes}",
            remedy="Change the sizes under [mesh], or learner.processes.",
        )
