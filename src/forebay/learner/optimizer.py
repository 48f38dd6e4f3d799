"""The optimizer: AdamW with global-norm clipping and a learning-rate schedule.

The settings may be read without JAX; optax is imported where the optimizer is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import optax


class OptimizerSettings(BaseModel):
    """Settings of AdamW, its clipping and its schedule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(1e-5, gt=0, description="Highest learning rate, reached after the warm-up.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="How the learning rate goes on after the warm-up."
    )
    warmup_steps: int = Field(
        0, ge=0, description="Steps of linear warm-up; step s uses (s + 1) / warmup_steps."
    )
    decay_until_step: int | None = Field(
        None, ge=1, description="Step at which a cosine or linear schedule reaches its end."
    )
    end_fraction: float = Field(
        0.0, ge=0, le=1, description="Learning rate at the end of the schedule, as a share of the highest."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment per step.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment per step.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay of matrices; norms are not decayed.")
    max_gradient_norm: float = Field(
        1.0, gt=0, description="Gradients of a larger global norm are scaled down to it; inf turns it off."
    )
    ess_scaling: bool = Field(
        False,
        description="Lower each step's learning rate by the root of the effective share of its sequences"
        " (VCPO): a step that few stale sequences carry counts for less.",
    )

    drift_price: float = Field(
        0.1,
        ge=0,
        allow_inf_nan=False,
        description="Lower the learning rate while the policy drifts from its data without a gain: the reward"
        " that a nat of drift has to bring, both per token; a tenth of the range of rewards. 0: never.",
    )
    free_drift_nats: float = Field(
        0.005, gt=0, description="Drift that drift_price does not count, nats a token (k3 in metrics.jsonl)."
    )

    @model_validator(mode="after")
    def _decay_has_an_end(self) -> Self:
        if self.schedule == "constant":
            return self
        if self.decay_until_step is None or self.decay_until_step <= self.warmup_steps:
            raise ValueError(
                f"schedule={self.schedule} needs decay_until_step > warmup_steps "
                f"(got {self.decay_until_step}, {self.warmup_steps}). Set optimizer.decay_until_step."
            )
        return self


def make_schedule(settings: OptimizerSettings) -> optax.Schedule:
    """Return the learning rate as a function of the number of steps taken so far.

    Linear warm-up to `learning_rate`, then constant, or from `warmup_steps` to `decay_until_step` by a cosine
    or a line down to `end_fraction` of it.

    References:
        Loshchilov and Hutter 2017, SGDR, eq. 5 (cosine).
    """
    import jax.numpy as jnp
    import optax

    peak, warmup = settings.learning_rate, settings.warmup_steps
    decay_steps = (settings.decay_until_step or 0) - warmup
    if settings.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, decay_steps, alpha=settings.end_fraction)
    elif settings.schedule == "linear":
        after = optax.linear_schedule(peak, peak * settings.end_fraction, decay_steps)
    else:
        after = optax.constant_schedule(peak)

    def schedule(count: optax.ScalarOrSchedule) -> optax.ScalarOrSchedule:
        if not warmup:
            return after(count)
        return jnp.where(count < warmup, peak * (count + 1) / warmup, after(count - warmup))

    return schedule


def make_optimizer(
    settings: OptimizerSettings, value_scale: float | None = None
) -> optax.GradientTransformation:
    """Build clipping, Adam, decoupled weight decay and the schedule, in this order.

    A critic's value head is clipped by itself: its errors are large at first, and would take the model's
    share of a common norm.

    Args:
        settings: Of the optimizer.
        value_scale: Learning rate of the value head, as a multiple of the model's; None if there is none.

    References:
        Kingma and Ba 2015, Adam, algorithm 1; Loshchilov and Hutter 2019, Decoupled weight decay, algorithm
        2; Pascanu et al. 2013, On the difficulty of training recurrent neural networks, algorithm 1
        (clipping).
    """
    import optax

    from forebay.learner.drift import price_drift

    parts = [optax.scale_by_adam(settings.beta1, settings.beta2, settings.epsilon)]
    if math.isfinite(settings.max_gradient_norm):
        clip = optax.clip_by_global_norm(settings.max_gradient_norm)
        apart = [optax.masked(clip, marked) for marked in (_of_model, _of_value_head)]
        parts[:0] = [clip] if value_scale is None else apart
    if settings.weight_decay:
        parts.append(optax.add_decayed_weights(settings.weight_decay, mask=_decayed))
    parts.append(optax.scale_by_learning_rate(make_schedule(settings)))
    if value_scale is not None:
        parts.append(optax.masked(optax.scale(value_scale), _of_value_head))
    if settings.drift_price:
        parts.append(price_drift(settings.drift_price, settings.free_drift_nats))
    return optax.chain(*parts)


def _decayed(params: dict) -> dict:
    """Mark what weight decay applies to: everything but the norms' scales and a bias."""
    return _marked(params, lambda name: not name.endswith(("_norm", "_bias")))


def _of_value_head(params: dict) -> dict:
    return _marked(params, lambda name: name.startswith("value_"))


def _of_model(params: dict) -> dict:
    return _marked(params, lambda name: not name.startswith("value_"))


def _marked(params: dict, mark: Callable[[str], bool]) -> dict:
    """Return a tree like the parameters that says of each leaf, by its name, whether it is marked."""
    marks: dict[str, Any] = {name: mark(name) for name in params if name != "layers"}
    if "layers" in params:
        marks["layers"] = {name: mark(name) for name in params["layers"]}
    return marks
