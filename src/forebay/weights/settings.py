"""Settings of publishing."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Durability = Literal["fsync", "os"]


class WeightSettings(BaseModel):
    """How versions of the weights are written and kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_versions: int = Field(3, ge=1, le=1000, description="Newest versions kept; one being read stays.")
    durability: Durability = Field(
        "os",
        description="os survives kill -9; fsync also survives power loss, which checkpoints cover already.",
    )
    adapters: Literal["merged", "separate"] = Field(
        "merged",
        description="How a run with model.lora publishes: merged into whole weights, for any generator; or "
        "separate, the model once and then adapters only, which forebay's generator merges when it loads and "
        "vLLM keeps beside the model.",
    )
    max_shard_bytes: int = Field(
        2**30, ge=2**10, description="Tensors are split over several files beyond this size."
    )
