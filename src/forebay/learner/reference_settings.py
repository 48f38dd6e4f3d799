"""Settings of the reference policy; no JAX is imported here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.models.settings import ComputeSettings

INITIAL = "initial"
# Where the reference's parameters can be had from at some point of a run.
Origin = Literal["source", "policy", "own"]


class ReferenceSettings(BaseModel):
    """Which policy the trained one is held to; looked at only if `objective.kl_coef` is above 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(
        INITIAL,
        description='The reference to begin with: "initial", what the run itself begins with; or whatever'
        " model.path can name; or a published version of a run, RUN/weights/v-INCARNATION-VERSION.",
    )
    update_every: int = Field(
        0,
        ge=0,
        description="Batches from one update of the reference by the policy to the next; 0: it is frozen.",
    )
    update_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the policy in an updated reference: 1 copies the policy; 0.01 with"
        " update_every = 1 is a moving average over about 100 batches.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Type that its parameters are held in. auto is compute.compute_dtype, with the same"
        " logprobs as float32, but float32 for a moving average, whose changes are small.",
    )

    @property
    def averages(self) -> bool:
        """Whether the reference is a mixture of policies."""
        return self.update_every > 0 and self.update_share < 1

    @property
    def is_policy(self) -> bool:
        """Whether it always is the policy before a batch's first update: then nothing more is kept."""
        return self.update_every == 1 and self.update_share == 1

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.update_every == 0 and self.update_share != 1:
            raise ValueError(
                f"reference.update_share={self.update_share} says how the reference is updated, but"
                " reference.update_every=0 never does. Set update_every, or remove update_share."
            )
        if self.averages and self.dtype == "bfloat16":
            raise ValueError(
                f"reference.dtype=bfloat16 has 8 bits: a reference that moves by"
                f" {self.update_share} of the distance would stand still. Use float32."
            )
        if self.is_policy and self.source != INITIAL:
            raise ValueError(
                f"reference.update_every=1 copies the policy before every batch, so reference.source="
                f"{self.source} would never be looked at. Remove it, or raise update_every."
            )
        return self

    def held_dtype(self, compute: ComputeSettings) -> Literal["float32", "bfloat16"]:
        """Return the type that its parameters are held in."""
        if self.averages or self.is_policy:
            return "float32"
        return compute.compute_dtype if self.dtype == "auto" else self.dtype

    def origin_at(self, batches: int) -> Origin:
        """Return where the reference can be had from once so many batches of the run are trained.

        Its source; the policy of that moment; or, being neither, only from where it is kept itself.

        Args:
            batches: Trained since the beginning of the run.

        Example:
            >>> [ReferenceSettings(update_every=2).origin_at(batches) for batches in range(4)]
            ['source', 'source', 'policy', 'own']
        """
        if self.is_policy:
            return "policy"
        if self.update_every == 0 or batches < self.update_every:
            return "source"
        return "policy" if self.update_share == 1 and batches % self.update_every == 0 else "own"

    def check_adapters(self) -> None:
        """Refuse a reference that a learner of adapters cannot hold beside its one frozen model.

        Raises:
            ConfigError: It is another model, or a mixture of adapters.
        """
        if self.source != INITIAL:
            raise ConfigError(
                "with model.lora the reference is made of the same frozen model, not of another one",
                got=f"reference.source={self.source}",
                limit=INITIAL,
                remedy="Remove reference.source: the initial version is the model without its new adapters.",
            )
        if self.averages:
            raise ConfigError(
                "adapters are products of two matrices, and the average of those is no average of policies",
                got=f"reference.update_share={self.update_share} with model.lora",
                limit=1,
                remedy="Set reference.update_share=1: the reference then is a copy of the policy.",
            )

    def check_penalty(self, updates_per_batch: int) -> None:
        """Refuse a reference that the policy cannot differ from.

        Args:
            updates_per_batch: Optimizer steps taken on one batch: epochs times minibatches.

        Raises:
            ConfigError: The reference always is the policy that is differentiated.
        """
        if self.is_policy and updates_per_batch == 1:
            raise ConfigError(
                "the reference would always be the policy itself, and the penalty 0",
                got="reference.update_every=1 with 1 update per batch",
                limit="2 updates per batch",
                remedy="Raise reference.update_every, lower reference.update_share, or take several"
                " minibatches or epochs.",
            )
