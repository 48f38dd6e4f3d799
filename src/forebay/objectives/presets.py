"""Named objectives as settings: what each paper does, as far as this package can do it.

What is named here is filled in where the configuration leaves it open, so that `forebay config show` prints
it. A setting given beside the preset wins, unless it is one of those that make the preset what it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from forebay.errors import ConfigError

PresetName = Literal[
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "decoupled",
    "areal",
    "dppo",
    "m2po",
    "bapo",
    "topr",
    "reinforce++",
    "rloo",
    "ppo-critic",
    "impala",
]


class Preset(NamedTuple):
    """One named objective.

    Attributes:
        identity: Settings without which it would be something else.
        defaults: Settings of the paper or its code that may be changed.
        paper: Where it comes from.
    """

    identity: Mapping[str, Any]
    defaults: Mapping[str, Any]
    paper: str

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the preset says, by the name of the setting."""
        return {**self.identity, **self.defaults}


_NO_REJECTION = {"geometric_low": 0.0, "geometric_high": math.inf}
_PPO_BOUNDS = {"clip_low": 0.2, "clip_high": 0.2}
_PPO = {"loss": "ppo_clip", "ratio": "token"}
# How a paper measures the distance from its reference policy; none is held to one unless `kl_coef` is set.
_K1_IN_REWARD = {"kl_estimator": "k1", "kl_in": "reward"}
_K3_IN_LOSS = {"kl_estimator": "k3", "kl_in": "loss"}

PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        {**_PPO, "advantage": "group_mean_std", "reduction": "sequence"},
        {**_PPO_BOUNDS, **_K3_IN_LOSS, **_NO_REJECTION},
        "https://arxiv.org/abs/2402.03300",
    ),
    "dr_grpo": Preset(
        {**_PPO, "advantage": "group_mean", "reduction": "constant"},
        {**_PPO_BOUNDS, **_NO_REJECTION},
        "https://arxiv.org/abs/2503.20783",
    ),
    "dapo": Preset(
        {**_PPO, "reduction": "token"},
        {
            "clip_low": 0.2,
            "clip_high": 0.28,
            "advantage": "group_mean_std",
            "dynamic_sampling": 4,
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/2503.14476",
    ),
    "gspo": Preset(
        {"loss": "ppo_clip", "ratio": "sequence", "reduction": "sequence"},
        {"clip_low": 3e-4, "clip_high": 4e-4, "advantage": "group_mean_std", **_NO_REJECTION},
        "https://arxiv.org/abs/2507.18071",
    ),
    "cispo": Preset(
        {"loss": "cispo"},
        {
            "clip_low": 1.0,
            "clip_high": 4.0,
            "advantage": "group_mean_std",
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/2506.13585",
    ),
    "decoupled": Preset(
        {"loss": "decoupled_ppo"},
        {
            "clip_low": 0.2,
            "clip_high": 0.28,
            "correction": "token_tis",
            "tis_cap": 2.0,
            "advantage": "group_mean",
            "reduction": "token",
            "geometric_low": 0.5,
            "geometric_high": 2.0,
        },
        "https://arxiv.org/abs/2110.00641",
    ),
    "areal": Preset(
        {"loss": "decoupled_ppo", "proximal": "recomputed"},
        {
            **_PPO_BOUNDS,
            "correction": "token_mis",
            "tis_cap": 5.0,
            "advantage": "group_mean_std",
            "normalize_advantages": True,
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/2505.24298",
    ),
    "dppo": Preset(
        {"loss": "dppo"},
        {"tv_limit": 0.15, "tis_cap": 20.0, "advantage": "group_mean", "reduction": "token", **_NO_REJECTION},
        "https://arxiv.org/abs/2602.04879",
    ),
    "m2po": Preset(
        {**_PPO, "clip_rule": "second_moment"},
        {
            "second_moment_limit": 0.04,
            "clip_low": 0.3,
            "clip_high": 0.5,
            "advantage": "group_mean_std",
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/2510.01161",
    ),
    "bapo": Preset(
        {**_PPO, "clip_rule": "balance"},
        {
            "clip_low": 0.4,
            "clip_high": 0.2,
            "balance_target": 1.0,
            "balance_clip_low": 0.2,
            "balance_clip_high": 1.0,
            "balance_step": 0.05,
            "dual_clip": 3.0,
            "advantage": "group_mean_std",
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/2510.18927",
    ),
    "topr": Preset(
        {"loss": "topr"},
        {"advantage": "group_mean", "reduction": "token", **_NO_REJECTION},
        "https://arxiv.org/abs/2503.14286",
    ),
    "reinforce++": Preset(
        {**_PPO, "normalize_advantages": True},
        {**_PPO_BOUNDS, "advantage": "none", "reduction": "token", **_K1_IN_REWARD, **_NO_REJECTION},
        "https://arxiv.org/abs/2501.03262",
    ),
    "rloo": Preset(
        {"loss": "reinforce", "advantage": "leave_one_out"},
        {"reduction": "constant", "constant_tokens": 1, **_K1_IN_REWARD, **_NO_REJECTION},
        "https://arxiv.org/abs/2402.14740",
    ),
    "ppo-critic": Preset(
        {**_PPO, "advantage": "gae"},
        {
            **_PPO_BOUNDS,
            "gamma": 1.0,
            "gae_lambda": 1.0,
            "normalize_advantages": True,
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/1707.06347",
    ),
    "impala": Preset(
        {"loss": "reinforce", "correction": "token_tis", "advantage": "vtrace"},
        {
            "tis_cap": 1.0,
            "vtrace_rho_cap": 1.0,
            "vtrace_c_cap": 1.0,
            "gamma": 1.0,
            "gae_lambda": 1.0,
            "reduction": "token",
            **_NO_REJECTION,
        },
        "https://arxiv.org/abs/1802.01561",
    ),
}


def expand(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the preset among some settings says and they do not.

    Args:
        given: Settings of the objective, by name.

    Returns:
        The same settings and the preset's; unchanged if there is none, or none of that name.

    Raises:
        ConfigError: A setting contradicts what makes the preset what it is.

    Example:
        >>> expand({"preset": "gspo", "clip_high": 1e-3})["ratio"]
        'sequence'
    """
    preset = PRESETS.get(str(given.get("preset")))
    if preset is None:
        return dict(given)
    for name, value in preset.identity.items():
        if name in given and given[name] != value:
            raise ConfigError(
                f'objective.preset = "{given["preset"]}" means {name} = {value!r}',
                got=f"{name} = {given[name]!r}",
                remedy=f"Remove objective.{name}, or write out the settings and remove objective.preset.",
            )
    filled = {**preset.settings, **given}
    if filled.get("reduction") != "constant" and "constant_tokens" not in given:
        filled.pop("constant_tokens", None)
    return filled
