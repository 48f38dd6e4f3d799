from __future__ import annotations

import math
from typing import get_args

import pytest
from pydantic import ValidationError

from forebay.config.dump import json_tree
from forebay.errors import ConfigError
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import build_objective
from forebay.objectives.presets import PRESETS, PresetName

EXTRA = {"dr_grpo": {"constant_tokens": 512}}


def preset(name: str, **given: object) -> ObjectiveSettings:
    return ObjectiveSettings(preset=name, **(EXTRA.get(name, {}) | given))


def test_every_name_has_a_preset() -> None:
    assert set(get_args(PresetName)) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_what_is_left_open(name: str) -> None:
    settings = preset(name)
    for key, value in PRESETS[name].settings.items():
        assert getattr(settings, key) == value, key
    build_objective(settings)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "decoupled"])
def test_c36_a_preset_says_whether_it_takes_several_updates(name: str) -> None:
    preset(name).check_updates_per_batch(4)


def test_c36_the_decoupled_preset_takes_several_updates_once_its_anchor_is_fixed() -> None:
    with pytest.raises(ConfigError, match="would bound later updates"):
        preset("decoupled").check_updates_per_batch(4)
    preset("decoupled", proximal="recomputed").check_updates_per_batch(4)


@pytest.mark.parametrize("name", PRESETS)
def test_what_was_filled_in_reads_back_the_same(name: str) -> None:
    settings = preset(name)
    assert ObjectiveSettings(**json_tree(settings)) == settings


def test_a_setting_beside_the_preset_wins() -> None:
    settings = preset("gspo", clip_high=1e-3, geometric_high=2.0)
    assert (settings.clip_low, settings.clip_high, settings.geometric_high) == (3e-4, 1e-3, 2.0)
    assert (settings.ratio, settings.geometric_low) == ("sequence", 0.0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("gspo", {"ratio": "token"}, r'"gspo" means ratio = \'sequence\' \(got ratio = \'token\'\)'),
        ("cispo", {"loss": "ppo_clip"}, r'"cispo" means loss = \'cispo\''),
        ("rloo", {"advantage": "group_mean"}, r"Remove objective.advantage, or write out"),
        ("ppo-critic", {"advantage": "vtrace"}, r'"ppo-critic" means advantage = \'gae\''),
        ("impala", {"correction": "none"}, r'"impala" means correction = \'token_tis\''),
    ],
)
def test_what_makes_a_preset_cannot_be_changed(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        preset(name, **given)


def test_dr_grpo_needs_to_know_the_longest_answer() -> None:
    with pytest.raises(ValidationError, match="Set constant_tokens to the longest answer"):
        ObjectiveSettings(preset="dr_grpo")


def test_another_reduction_needs_no_constant() -> None:
    settings = preset("rloo", reduction="token")
    assert (settings.reduction, settings.constant_tokens) == ("token", None)
    assert preset("rloo").constant_tokens == 1


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        ObjectiveSettings(preset="ppo-critics")
    assert caught.value.errors()[0]["loc"] == ("preset",)


def test_without_a_preset_the_defaults_stay() -> None:
    assert ObjectiveSettings() == ObjectiveSettings(preset=None)
    assert ObjectiveSettings().geometric_high == 2.0 != math.inf


def test_several_updates_of_decoupled_ppo_still_need_a_fixed_anchor() -> None:
    with pytest.raises(ConfigError, match="would bound later updates"):
        preset("areal", proximal="recomputed").model_copy(
            update={"proximal": "current"}
        ).check_updates_per_batch(2)
