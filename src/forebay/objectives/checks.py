"""What the settings of an objective exclude: options that would change nothing, or could never work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.errors import ConfigError

if TYPE_CHECKING:
    from forebay.objectives.settings import ObjectiveSettings

_CLIPPED = ("decoupled_ppo", "ppo_clip")
_CORRECTED = ("decoupled_ppo", "reinforce")


def check_objective(settings: ObjectiveSettings) -> None:
    """Refuse settings that contradict one another.

    Args:
        settings: The objective.

    Raises:
        ConfigError: With what contradicts what, and the remedy.
    """
    _check_constant(settings)
    _check_loss(settings)
    _check_advantage(settings)
    _check_overlong(settings)


def _check_constant(settings: ObjectiveSettings) -> None:
    if (settings.reduction == "constant") == (settings.constant_tokens is not None):
        return
    needed = settings.reduction == "constant"
    remedy = "Set constant_tokens to the longest answer" if needed else "Remove constant_tokens"
    raise ConfigError(
        f"constant_tokens {'is needed' if needed else 'is unused'} if reduction is {settings.reduction!r}",
        got=settings.constant_tokens,
        remedy=f"{remedy}, or choose another reduction ('token', 'sequence', 'constant').",
    )


def _check_loss(settings: ObjectiveSettings) -> None:
    if settings.proximal != "current" and settings.loss != "decoupled_ppo":
        raise ConfigError(
            f'proximal = "{settings.proximal}" is a policy that only decoupled_ppo looks at',
            got=f"loss {settings.loss}",
            remedy='Set loss = "decoupled_ppo" or proximal = "current".',
        )
    if settings.correction != "token_tis" and settings.loss not in _CORRECTED:
        raise ConfigError(
            f'correction = "{settings.correction}" is a weight that only decoupled_ppo and reinforce apply',
            got=f"loss {settings.loss}",
            remedy='Set loss = "decoupled_ppo" or "reinforce", or remove correction.',
        )
    for name, off in (("ratio", "token"), ("dual_clip", None)):
        if getattr(settings, name) != off and settings.loss not in _CLIPPED:
            raise ConfigError(
                f"{name} = {getattr(settings, name)!r} belongs to the clip of ppo_clip and decoupled_ppo",
                got=f"loss {settings.loss}",
                remedy=f'Set loss = "ppo_clip" or "decoupled_ppo", or remove {name}.',
            )


def _check_advantage(settings: ObjectiveSettings) -> None:
    if settings.advantage != "none":
        return
    if not settings.normalize_advantages:
        raise ConfigError(
            'advantage = "none" compares a reward with nothing: equal rewards would still be learned from',
            remedy="Set normalize_advantages = true, or choose a baseline.",
        )
    if settings.dynamic_sampling:
        raise ConfigError(
            "dynamic_sampling drops groups of equal rewards, but without a baseline they teach too",
            got='advantage = "none"',
            remedy="Set dynamic_sampling = 0, or choose a baseline.",
        )


def _check_overlong(settings: ObjectiveSettings) -> None:
    longest, cache = settings.overlong_tokens, settings.overlong_cache_tokens
    if (longest is None) != (cache is None):
        raise ConfigError(
            "overlong_tokens and overlong_cache_tokens together say where a penalty for length lies",
            got=f"overlong_tokens {longest}, overlong_cache_tokens {cache}",
            remedy="Set both, or none.",
        )
    if longest is not None and cache is not None and cache > longest:
        raise ConfigError(
            "a penalty for length cannot begin before the first token",
            got=f"overlong_cache_tokens {cache}",
            limit=f"overlong_tokens {longest}",
            remedy="Lower objective.overlong_cache_tokens.",
        )
