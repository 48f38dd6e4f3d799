"""Settings of the objective, and what they exclude."""

from __future__ import annotations

import functools
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.objectives.advantages import AdvantageEstimator, group_mean, group_mean_std, leave_one_out


class ObjectiveSettings(BaseModel):
    """What the learner minimizes; the defaults suit data that is up to several versions stale."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: Literal["decoupled_ppo", "ppo_clip", "reinforce", "cross_entropy"] = Field(
        "decoupled_ppo",
        description="decoupled_ppo clips against the proximal policy and corrects staleness by a weight;"
        " ppo_clip clips against the behavior policy; reinforce weighs log-likelihood by advantage;"
        " cross_entropy imitates (supervised warm start).",
    )
    proximal: Literal["current", "recomputed"] = Field(
        "current",
        description="Proximal policy of decoupled_ppo: the one being trained (one update per batch, no"
        " second forward), or logprobs recomputed at the start of the update (minibatches, epochs).",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, description="The ratio is clipped above at 1 + clip_high.")
    tis_cap: float | None = Field(
        2.0, ge=1, description="Cap of the token importance weight (decoupled_ppo, reinforce); inf: none."
    )
    geometric_low: float | None = Field(
        0.5, ge=0, lt=1, description="Reject a sequence with a lower geometric mean weight; 0: no bound."
    )
    geometric_high: float | None = Field(
        2.0, gt=1, description="Reject a sequence with a higher geometric mean weight; inf: no bound."
    )
    icepop_low: float | None = Field(
        None, ge=0, lt=1, description="Reject a token with a lower weight (IcePop: 0.5); unset: no bound."
    )
    icepop_high: float | None = Field(
        None, gt=1, description="Reject a token with a higher weight (IcePop: 5.0); unset: no bound."
    )
    entropy_coef: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Weight of the entropy bonus, loss per nat."
    )
    reduction: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="Mean over fresh tokens; or mean over sequences of the mean over their fresh tokens; or"
        " mean over sequences of the sum over their tokens divided by constant_tokens (Dr. GRPO).",
    )
    constant_tokens: int | None = Field(
        None, ge=1, description='What reduction = "constant" divides a sequence by, tokens; else unset.'
    )
    advantage: Literal["group_mean", "group_mean_std", "leave_one_out"] = Field(
        "group_mean",
        description="What a reward is compared with: the group's mean; its mean, in units of its spread;"
        " the mean of the other members.",
    )
    advantage_ddof: Literal[0, 1] = Field(
        1, description="group_mean_std: 1 for the sample's standard deviation, 0 for the population's."
    )
    advantage_eps: float = Field(
        1e-6,
        gt=0,
        allow_inf_nan=False,
        description="group_mean_std: added to the standard deviation, in units of reward.",
    )

    @model_validator(mode="after")
    def _constant_belongs_to_its_reduction(self) -> Self:
        if (self.reduction == "constant") == (self.constant_tokens is not None):
            return self
        needed = self.reduction == "constant"
        remedy = "Set constant_tokens to the longest answer" if needed else "Remove constant_tokens"
        problem = ConfigError(
            f"constant_tokens {'is needed' if needed else 'is unused'} if reduction is {self.reduction!r}",
            got=self.constant_tokens,
            remedy=f"{remedy}, or choose another reduction ('token', 'sequence', 'constant').",
        )
        raise ValueError(str(problem))

    @model_validator(mode="after")
    def _proximal_belongs_to_decoupled(self) -> Self:
        if self.proximal == "recomputed" and self.loss != "decoupled_ppo":
            problem = ConfigError(
                'proximal = "recomputed" costs a forward pass that only decoupled_ppo uses',
                got=f"loss {self.loss}",
                remedy='Set loss = "decoupled_ppo" or proximal = "current".',
            )
            raise ValueError(str(problem))
        return self

    def check_updates_per_batch(self, num_updates: int) -> None:
        """Refuse several updates per batch without a proximal policy that stays fixed meanwhile.

        Args:
            num_updates: Optimizer steps taken on one batch: epochs times minibatches.

        Raises:
            ConfigError: If every ratio would be 1 although the policy has moved within the batch.
        """
        if num_updates > 1 and self.loss == "decoupled_ppo" and self.proximal == "current":
            raise ConfigError(
                'proximal = "current" makes every ratio 1, so nothing would bound later updates of a batch',
                got=f"{num_updates} updates per batch",
                limit="1",
                remedy='Set objective.proximal = "recomputed", or one epoch and one minibatch per batch.',
            )


def build_advantage(settings: ObjectiveSettings) -> AdvantageEstimator:
    """Return the function from one group's rewards to its members' advantages.

    Args:
        settings: The objective's settings; only the `advantage*` ones matter.

    Returns:
        A pure function of one group's rewards.
    """
    if settings.advantage == "group_mean_std":
        return functools.partial(group_mean_std, ddof=settings.advantage_ddof, eps=settings.advantage_eps)
    return {"group_mean": group_mean, "leave_one_out": leave_one_out}[settings.advantage]
