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
    _check_clip_rule(settings)
    _check_advantage(settings)
    _check_critic(settings)
    _check_unused(settings)
    _check_overlong(settings)
    _check_reference(settings)


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


def _check_clip_rule(settings: ObjectiveSettings) -> None:
    rule = settings.clip_rule
    for name, default, user in (
        ("second_moment_limit", 0.04, "second_moment"),
        ("balance_target", 1.0, "balance"),
        ("balance_clip_low", 0.2, "balance"),
        ("balance_clip_high", 1.0, "balance"),
        ("balance_step", 0.05, "balance"),
    ):
        if getattr(settings, name) != default and rule != user:
            raise ConfigError(
                f'{name} = {getattr(settings, name)!r} is unused: only clip_rule = "{user}" looks at it',
                got=f'clip_rule = "{rule}"',
                remedy=f'Set clip_rule = "{user}", or remove {name}.',
            )
    if rule == "fixed":
        return
    for name, needed in (("loss", "ppo_clip"), ("ratio", "token")):
        if getattr(settings, name) != needed:
            raise ConfigError(
                f'clip_rule = "{rule}" finds bounds for each token\'s ratio to the policy that sampled',
                got=f"{name} {getattr(settings, name)}",
                remedy=f'Set {name} = "{needed}", or clip_rule = "fixed".',
            )
    if settings.kl_coef and settings.kl_in == "reward":
        raise ConfigError(
            f'clip_rule = "{rule}" looks at advantages before kl_in = "reward" changes them',
            got=f"kl_coef {settings.kl_coef:g}",
            remedy='Set kl_in = "loss", or clip_rule = "fixed".',
        )
    if rule == "balance" and (
        settings.balance_clip_low > settings.clip_low or settings.balance_clip_high < settings.clip_high
    ):
        raise ConfigError(
            "the bounds of a balance only rise: from 1 - clip_low, from 1 + clip_high",
            got=f"balance_clip_low {settings.balance_clip_low:g}, balance_clip_high"
            f" {settings.balance_clip_high:g}",
            limit=f"at most clip_low {settings.clip_low:g}, at least clip_high {settings.clip_high:g}",
            remedy="Lower objective.balance_clip_low, or raise objective.balance_clip_high.",
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


def _check_critic(settings: ObjectiveSettings) -> None:
    if not settings.has_critic:
        return
    if settings.loss == "cross_entropy":
        raise ConfigError(
            f'advantage = "{settings.advantage}" trains a critic, but cross_entropy looks at no advantage',
            got="loss cross_entropy",
            remedy="Choose another loss, or remove advantage.",
        )
    if settings.dynamic_sampling:
        raise ConfigError(
            "dynamic_sampling drops groups of equal rewards, but with a critic they teach too",
            got=f'advantage = "{settings.advantage}"',
            remedy="Set dynamic_sampling = 0, or choose a baseline of the group.",
        )
    if settings.siblings != "all":
        raise ConfigError(
            f'siblings = "{settings.siblings}" says who is compared with whom, but a critic compares nobody',
            got=f'advantage = "{settings.advantage}"',
            remedy='Set siblings = "all"; with batching.group_size = 1 no episode waits for another.',
        )
    if settings.advantage == "vtrace" and settings.vtrace_c_cap > settings.vtrace_rho_cap:
        raise ConfigError(
            "V-trace carries nothing back that it would not count itself: c_cap may not exceed rho_cap",
            got=f"vtrace_c_cap {settings.vtrace_c_cap:g}",
            limit=f"vtrace_rho_cap {settings.vtrace_rho_cap:g}",
            remedy="Lower objective.vtrace_c_cap, or raise objective.vtrace_rho_cap.",
        )


def _check_unused(settings: ObjectiveSettings) -> None:
    critic = ("gae", "vtrace")
    for name, default, users in (
        ("gamma", 1.0, (*critic, "turn_return")),
        ("gae_lambda", 1.0, critic),
        ("bootstrap_truncated", True, critic),
        ("vtrace_rho_cap", 1.0, ("vtrace",)),
        ("vtrace_c_cap", 1.0, ("vtrace",)),
    ):
        if getattr(settings, name) != default and settings.advantage not in users:
            raise ConfigError(
                f"{name} = {getattr(settings, name)!r} is unused: only advantage = {_either(users)} looks at"
                " it",
                got=f'advantage = "{settings.advantage}"',
                remedy=f"Set advantage = {_either(users)}, or remove {name}.",
            )


def check_group_size(settings: ObjectiveSettings, *, group_size: int, min_group_size: int) -> None:
    """Refuse groups too small for the objective: what is compared within a group needs two members.

    Args:
        settings: The objective.
        group_size: Trajectories of a group.
        min_group_size: Members that suffice once a group's deadline has passed.

    Raises:
        ConfigError: One member would be compared with nobody, so that every advantage is 0.
    """
    if settings.has_critic or settings.advantage == "none":
        return
    for name, size in (("group_size", group_size), ("min_group_size", min_group_size)):
        if size < 2:
            raise ConfigError(
                f'advantage = "{settings.advantage}" compares the members of a group: one has no baseline',
                got=f"batching.{name}={size}",
                limit="2",
                remedy=f'Raise batching.{name}, or set objective.advantage = "gae" (preset ppo-critic).',
            )


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(f'"{name}"' for name in names)


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


def _check_reference(settings: ObjectiveSettings) -> None:
    if settings.kl_coef == 0:
        return
    if settings.kl_estimator == "k1" and settings.kl_in == "loss":
        raise ConfigError(
            'kl_estimator = "k1" in the loss holds the policy to nothing: its expected gradient is 0',
            got='kl_in = "loss"',
            remedy='Set objective.kl_in = "reward", or kl_estimator = "k2" or "k3".',
        )
    if settings.kl_in == "reward" and settings.loss == "cross_entropy":
        raise ConfigError(
            'kl_in = "reward" changes advantages, which cross_entropy does not look at',
            got="loss cross_entropy",
            remedy='Set objective.kl_in = "loss", or choose another loss.',
        )
