"""Settings of the supervised warm start; no JAX is imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SupervisedSettings(BaseModel):
    """How `forebay sft` imitates demonstrations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    demonstrations: str = Field(
        "", description="JSONL file of conversations; empty asks the first environment for demonstrations."
    )
    num_demonstrations: int = Field(2000, ge=1, description="Demonstrations to ask the environment for.")
    noise: float = Field(
        0.0, ge=0, lt=1, description="Share of mistaken turns in demonstrations that are made."
    )
    epochs: int = Field(3, ge=1, description="Times that every demonstration is shown.")
    batch_tokens: int = Field(4096, ge=1, description="Tokens of one optimizer step, about.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the weights that are written; they are trained in float32."
    )
