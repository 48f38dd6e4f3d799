"""Settings of what a run tells about itself, besides `metrics.jsonl`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TelemetrySettings(BaseModel):
    """What a run tells about itself: a timeline, and further places for its metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace: bool = Field(
        True, description="Record what every process does when, for `forebay trace`; costs well under 1 %."
    )
    trace_every: int = Field(
        32, ge=1, description="Of so many trajectories one is followed from dispatch to training."
    )
    trace_bytes: int = Field(
        32 * 2**20, ge=2**16, description="Most bytes of trace that a process keeps; the newest stay."
    )
    tensorboard: bool = Field(
        False, description="Write metrics as TensorBoard events too; needs the extra `tensorboard`."
    )
    wandb: Literal["off", "offline", "online"] = Field(
        "off", description="Log metrics to Weights & Biases too; needs the extra `wandb`."
    )
    wandb_project: str = Field("forebay", min_length=1, description="Project of Weights & Biases.")
    prometheus_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Serve the newest metrics on this port of 127.0.0.1; needs the extra `prometheus`.",
    )
