"""Settings of the critic: the value head that `objective.advantage = "gae"` and `"vtrace"` train and use."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from forebay.errors import ConfigError


class ValueSettings(BaseModel):
    """How the value head is trained beside the policy; without one, none of it matters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    coef: float = Field(
        0.5,
        gt=0,
        allow_inf_nan=False,
        description="Weight of the value loss beside the policy's; both reach the model that they share.",
    )
    clip: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="How far a value may move within one batch, in units of return (minibatches, epochs);"
        " unset: no bound.",
    )
    huber: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Error from which the value loss is linear, in units of return; unset: always squared.",
    )
    learning_rate_scale: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="Learning rate of the value head, as a multiple of optimizer.learning_rate: it begins at"
        " 0 and has further to go than a trained model.",
    )

    def check_used(self, advantage: str, *, has_critic: bool) -> None:
        """Refuse settings of a critic where there is none.

        Args:
            advantage: The objective's.
            has_critic: Whether it trains a value head.

        Raises:
            ConfigError: A setting that nobody looks at is not its default.
        """
        defaults = ValueSettings()
        for name in type(self).model_fields:
            if not has_critic and getattr(self, name) != getattr(defaults, name):
                raise ConfigError(
                    f"value.{name} = {getattr(self, name)!r} is unused: there is no critic",
                    got=f'objective.advantage = "{advantage}"',
                    limit='"gae" or "vtrace"',
                    remedy=f"Set objective.advantage, or remove value.{name}.",
                )
