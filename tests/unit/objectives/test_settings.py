from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from forebay.errors import ConfigError
from forebay.objectives import ObjectiveSettings


def test_defaults_are_the_stale_tolerant_ones() -> None:
    settings = ObjectiveSettings()
    assert (settings.loss, settings.ratio, settings.reduction) == ("ppo_clip", "token", "token")
    assert (settings.clip_low, settings.clip_high) == (0.5, 1.0)
    assert (settings.geometric_low, settings.geometric_high) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tis_cap", 0.5),
        ("tis_cap", math.nan),
        ("clip_low", 0.0),
        ("clip_low", 1.1),
        ("clip_high", -0.1),
        ("geometric_low", 1.0),
        ("geometric_high", 1.0),
        ("icepop_low", 2.0),
        ("icepop_high", 0.5),
        ("entropy_coef", math.inf),
        ("advantage_eps", 0.0),
        ("advantage_ddof", 2),
        ("constant_tokens", 0),
        ("loss", "grpo"),
        ("clip", 0.2),
    ],
)
def test_impossible_values_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        ObjectiveSettings(**{key: value})
    assert caught.value.errors()[0]["loc"] == (key,)


def test_no_bound_can_be_written_as_a_number() -> None:
    settings = ObjectiveSettings(tis_cap=math.inf, geometric_low=0.0, geometric_high=math.inf)
    assert settings.tis_cap == math.inf


@pytest.mark.parametrize("choice", [{"reduction": "constant"}, {"constant_tokens": 100}])
def test_constant_tokens_belongs_to_the_constant_reduction(choice: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"constant_tokens is .*(Set|Remove) constant_tokens"):
        ObjectiveSettings(**choice)


def test_recomputed_proximal_needs_the_decoupled_loss() -> None:
    with pytest.raises(ValidationError, match=r"got loss ppo_clip.*Set loss"):
        ObjectiveSettings(loss="ppo_clip", proximal="recomputed")


@pytest.mark.parametrize(
    ("settings", "num_updates"),
    [
        (ObjectiveSettings(preset="decoupled"), 1),
        (ObjectiveSettings(loss="decoupled_ppo", proximal="recomputed"), 4),
        (ObjectiveSettings(), 4),
    ],
)
def test_updates_per_batch_that_work(settings: ObjectiveSettings, num_updates: int) -> None:
    settings.check_updates_per_batch(num_updates)


def test_several_updates_need_a_fixed_proximal_policy() -> None:
    with pytest.raises(ConfigError, match=r"got 4 updates per batch, limit 1.*recomputed"):
        ObjectiveSettings(preset="decoupled").check_updates_per_batch(4)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"loss": "cispo", "proximal": "interpolated"}, r"only decoupled_ppo looks at .*got loss cispo"),
        (
            {"loss": "dppo", "correction": "sequence_tis"},
            r"only decoupled_ppo and reinforce apply .*got loss dppo",
        ),
        ({"loss": "topr", "ratio": "sequence"}, r"ratio = 'sequence' belongs to the clip .*got loss topr"),
        ({"loss": "cispo", "dual_clip": 3.0}, r"dual_clip = 3.0 belongs to the clip .*got loss cispo"),
        (
            {"advantage": "none"},
            r"equal rewards would still be learned from.*Set normalize_advantages = true",
        ),
        (
            {"advantage": "none", "normalize_advantages": True, "dynamic_sampling": 2},
            r"without a baseline they teach too .*Set dynamic_sampling = 0",
        ),
        (
            {"advantage": "gae", "dynamic_sampling": 2},
            r"with a critic they teach too .*Set dynamic_sampling = 0",
        ),
        ({"advantage": "gae", "loss": "cross_entropy"}, r"looks at no advantage .*got loss cross_entropy"),
        ({"advantage": "vtrace", "siblings": "pairs"}, r"a critic compares nobody .*Set siblings = \"all\""),
        (
            {"advantage": "vtrace", "vtrace_rho_cap": 0.5},
            r"got vtrace_c_cap 1, limit vtrace_rho_cap 0.5",
        ),
        ({"advantage": "gae", "vtrace_c_cap": 0.5}, r'vtrace_c_cap = 0.5 is unused.* "vtrace" looks at it'),
        ({"gae_lambda": 0.95}, r'gae_lambda = 0.95 is unused.*got advantage = "group_mean"'),
        ({"gamma": 0.9}, r'Set advantage = "gae" or "vtrace" or "turn_return", or remove gamma'),
        (
            {"advantage": "turn_return", "bootstrap_truncated": False},
            r"bootstrap_truncated = False is unused",
        ),
        ({"overlong_tokens": 100}, r"overlong_cache_tokens None.*Set both, or none"),
        (
            {"overlong_tokens": 10, "overlong_cache_tokens": 11},
            r"got overlong_cache_tokens 11, limit overlong_tok",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_one_line(
    choice: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        ObjectiveSettings(**choice)
    assert "\n" not in caught.value.errors()[0]["msg"]


def test_an_interpolated_proximal_policy_bounds_later_updates() -> None:
    ObjectiveSettings(loss="decoupled_ppo", proximal="interpolated").check_updates_per_batch(4)
