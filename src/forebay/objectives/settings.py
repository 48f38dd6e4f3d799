"""Settings of the objective, and the functions of the host that they choose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.objectives.advantages import (
    AdvantageEstimator,
    BatchAdvantages,
    GroupAdvantages,
    Outcome,
    group_mean,
    group_mean_std,
    leave_one_out,
    no_baseline,
)
from forebay.objectives.checks import check_objective
from forebay.objectives.dapo import overlong_penalty
from forebay.objectives.presets import PresetName, expand
from forebay.objectives.reinforce_plus_plus import normalize_over_batch
from forebay.objectives.turn_credit import left_to_a_critic, turn_returns, turn_rewards

AdvantageName = Literal[
    "group_mean", "group_mean_std", "leave_one_out", "turn_return", "gae", "vtrace", "none"
]


class LossSettings(BaseModel):
    """The loss of a token: its ratio, its bounds, what corrects for stale data, and how tokens are summed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: PresetName | None = Field(
        None,
        description="Fills in what a named objective says and this section does not; see the page on"
        " objectives.",
    )
    loss: Literal["decoupled_ppo", "ppo_clip", "cispo", "dppo", "topr", "reinforce", "cross_entropy"] = Field(
        "ppo_clip",
        description="ppo_clip clips against the behavior policy; decoupled_ppo clips against the proximal"
        " policy and corrects staleness by a weight; cispo clips the weight and trains every token; dppo"
        " stops where a probability has moved by tv_limit; topr imitates what went well and weighs what went"
        " badly; reinforce weighs log-likelihood by advantage; cross_entropy imitates (supervised warm"
        " start).",
    )
    proximal: Literal["current", "recomputed", "interpolated"] = Field(
        "current",
        description="Proximal policy of decoupled_ppo: the one being trained (one update per batch, no"
        " second forward), logprobs recomputed at the start of the update (minibatches, epochs), or a guess"
        " between the behavior and the current policy by the token's staleness (A-3PO, no second forward).",
    )
    ratio: Literal["token", "turn", "sequence"] = Field(
        "token",
        description="What shares a ratio and is clipped together (ppo_clip, decoupled_ppo): each token, or by"
        " the geometric mean a turn of an episode, or a sequence (GSPO).",
    )
    clip_low: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The ratio, or cispo's weight, is clipped below at 1 - clip_low; 1: no bound.",
    )
    clip_high: float = Field(
        1.0, gt=0, description="The ratio, or cispo's weight, is clipped above at 1 + clip_high."
    )
    clip_rule: Literal["fixed", "second_moment", "balance"] = Field(
        "fixed",
        description="Who finds the bounds of ppo_clip: clip_low and clip_high alone (fixed); or, for each"
        " update anew, its own tokens: as far out as keeps their mean squared log-ratio within"
        " second_moment_limit, but never nearer than clip_low and clip_high (second_moment: M2PO); or further"
        " up from them, until good tokens outweigh bad ones (balance: BAPO). Both need a second forward"
        " pass.",
    )
    second_moment_limit: float = Field(
        0.04,
        gt=0,
        allow_inf_nan=False,
        description="second_moment: mean squared log-ratio, of tokens that a clip could stop; nats squared.",
    )
    balance_target: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="balance: what good tokens are to contribute over what bad ones do.",
    )
    balance_clip_low: float = Field(
        0.2, gt=0, le=1, description="balance: the lower bound ends at 1 - balance_clip_low."
    )
    balance_clip_high: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="balance: the upper bound ends at 1 + balance_clip_high."
    )
    balance_step: float = Field(
        0.05, ge=0.001, allow_inf_nan=False, description="balance: by which a bound moves at a time."
    )
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Bound of the ratio where the advantage is negative (dual-clip PPO: 3); unset: no bound.",
    )
    tv_limit: float = Field(
        0.15, gt=0, lt=1, description="dppo: how far a token's probability may move from the behavior's."
    )
    correction: Literal["none", "token_tis", "token_mis", "sequence_tis", "sequence_mis"] = Field(
        "token_tis",
        description="Importance weight, proximal / behavior, of decoupled_ppo and reinforce: none; that of"
        " the token or the product over its sequence; capped at tis_cap (tis) or rejected beyond it (mis).",
    )
    tis_cap: float | None = Field(
        2.0,
        ge=1,
        description="Cap of the importance weight (decoupled_ppo, reinforce, dppo); inf: none.",
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
    kl_coef: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the divergence from the reference policy (see [reference]), per nat; 0: there"
        " is none, and it costs nothing.",
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="Estimate of that divergence from a sampled token: k1 the log-ratio, k2 half its square,"
        " k3 GRPO's; see the page on objectives.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="loss adds the estimate to each token's loss (k2, k3); reward takes it off the rewards,"
        " so that a token answers for its own and for all later ones of its sequence.",
    )
    reduction: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="Mean over fresh tokens; or mean over sequences of the mean over their fresh tokens; or"
        " mean over sequences of the sum over their tokens divided by constant_tokens (Dr. GRPO).",
    )
    constant_tokens: int | None = Field(
        None, ge=1, description='What reduction = "constant" divides a sequence by, tokens; else unset.'
    )


class ObjectiveSettings(LossSettings):
    """What the learner minimizes; the defaults suit data that is up to several versions stale."""

    advantage: AdvantageName = Field(
        "group_mean",
        description="What a reward is compared with: the group's mean; its mean, in units of its spread;"
        " the mean of the other members; by turn, the mean of what came after the same turn of the others"
        " (turn_return); what a trained value head expected (gae; vtrace, corrected for staleness); nothing"
        " but the batch (none: needs normalize_advantages).",
    )
    gamma: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Discount of later rewards: per token (gae, vtrace), per turn (turn_return).",
    )
    gae_lambda: float = Field(
        1.0,
        ge=0,
        le=1,
        description="gae and vtrace: weight of rewards against the value's own guesses; 1 rests on rewards"
        " alone, less shrinks what reaches a token by this factor per token in between.",
    )
    vtrace_rho_cap: float = Field(
        1.0, gt=0, description="vtrace: cap of the ratio that weighs a token's own surprise; inf: none."
    )
    vtrace_c_cap: float = Field(
        1.0, gt=0, description="vtrace: cap of the ratio that carries later surprises back; inf: none."
    )
    bootstrap_truncated: bool = Field(
        True,
        description="gae and vtrace: an episode that a limit ended goes on in the value of its last state;"
        " false: it is worth what it has gained, for tasks that the limit is part of.",
    )
    siblings: Literal["all", "finished", "pairs"] = Field(
        "all",
        description="Which episodes of a task wait for one another: all of its group; two and two, compared"
        " within the pair (pairs); none, each being compared with those that have finished (finished: biased"
        " where how long an episode takes tells something about its reward).",
    )
    normalize_advantages: bool = Field(
        False,
        description="Take advantages less their mean over the batch, in units of their spread (REINFORCE++).",
    )
    advantage_ddof: Literal[0, 1] = Field(
        1, description="Of a spread: 1 for the sample's standard deviation, 0 for the population's."
    )
    advantage_eps: float = Field(
        1e-6, gt=0, allow_inf_nan=False, description="Added to a spread, in units of reward."
    )
    overlong_tokens: int | None = Field(
        None,
        ge=1,
        description="Sampled tokens from which an episode's reward is lowered by 1 (DAPO); unset: never.",
    )
    overlong_cache_tokens: int | None = Field(
        None, ge=1, description="Width of the slope from 0 to that penalty, tokens."
    )
    dynamic_sampling: int = Field(
        0,
        ge=0,
        description="Drop groups whose rewards are equal and take others (DAPO), for each batch at most this"
        " many batches' worth; beyond, they are trained as they are. 0: off.",
    )

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        try:
            return expand(given)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        try:
            check_objective(self)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def has_critic(self) -> bool:
        """Whether a value head is trained and judges the tokens."""
        return self.advantage in ("gae", "vtrace")

    @property
    def needs_current_logprobs(self) -> bool:
        """Whether a batch is scored by the policy before its first update: a second forward pass."""
        return self.proximal == "recomputed" or self.advantage == "vtrace" or self.clip_rule != "fixed"

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
                remedy='Set objective.proximal = "recomputed" or "interpolated", or one update per batch.',
            )


def build_advantage(settings: ObjectiveSettings) -> AdvantageEstimator:
    """Return the function from one group's rewards to its members' advantages.

    Args:
        settings: The objective's settings; only the `advantage*` ones matter.

    Returns:
        A pure function of one group's rewards.

    Raises:
        KeyError: The estimator looks at more than one reward for each member.
    """
    if settings.advantage == "group_mean_std":
        return functools.partial(group_mean_std, ddof=settings.advantage_ddof, eps=settings.advantage_eps)
    return {"group_mean": group_mean, "leave_one_out": leave_one_out, "none": no_baseline}[settings.advantage]


def build_batch_advantages(settings: ObjectiveSettings) -> BatchAdvantages:
    """Return the function from the outcomes of a whole batch to the advantages of its groups.

    In this order: the penalty for overlong episodes, the comparison within each group, the normalization over
    the batch. With a critic the rewards are handed on instead: its values are not known before the update.

    Args:
        settings: The objective's settings; only those of advantages and the penalty matter.

    Returns:
        A pure function of the outcomes of every group of a batch, before it is split into minibatches.
    """
    estimate = _group_estimator(settings)

    def batch_advantages(groups: Sequence[Sequence[Outcome]]) -> list[GroupAdvantages]:
        advantages = [estimate(group) for group in groups]
        if not settings.normalize_advantages or settings.has_critic:
            return advantages
        return normalize_over_batch(advantages, ddof=settings.advantage_ddof, eps=settings.advantage_eps)

    return batch_advantages


def _group_estimator(settings: ObjectiveSettings) -> Callable[[Sequence[Outcome]], GroupAdvantages]:
    if settings.has_critic:
        return lambda group: left_to_a_critic(_shaped_turn_rewards(settings, group))
    if settings.advantage == "turn_return":
        return lambda group: turn_returns(_shaped_turn_rewards(settings, group), gamma=settings.gamma)
    estimator = build_advantage(settings)
    return lambda group: estimator(shaped_rewards(settings, group))


def _shaped_turn_rewards(
    settings: ObjectiveSettings, group: Sequence[Outcome]
) -> list[npt.NDArray[np.float64] | None]:
    return [
        turn_rewards(reward, outcome.rewards_by_turn)
        for reward, outcome in zip(shaped_rewards(settings, group), group, strict=True)
    ]


def shaped_rewards(settings: ObjectiveSettings, group: Sequence[Outcome]) -> list[float | None]:
    """Return the rewards of one group as they are compared: less the penalty for overlong episodes.

    Args:
        settings: The objective's settings; only `overlong_*` matter.
        group: The outcomes of its members.
    """
    longest, cache = settings.overlong_tokens, settings.overlong_cache_tokens
    if longest is None or cache is None:
        return [outcome.reward for outcome in group]
    return [
        None
        if outcome.reward is None
        else outcome.reward + overlong_penalty(outcome.num_tokens, max_tokens=longest, cache_tokens=cache)
        for outcome in group
    ]
