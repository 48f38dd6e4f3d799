from __future__ import annotations

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from forebay.errors import ConfigError
from forebay.models.checkpoint_io import load_config
from forebay.models.lora import init_adapters, with_adapters
from forebay.models.lora_layout import check_targets, num_adapter_parameters
from forebay.models.settings import PROJECTIONS, LoraSettings, ModelSettings
from tests.unit.models import tiny
from tests.unit.models.test_lora_files import GOLDEN

LORA = LoraSettings(rank=4, alpha=8.0)


def test_adapters_are_trained_only_if_a_rank_is_given() -> None:
    assert ModelSettings().adapters is None
    assert ModelSettings(lora=LORA).adapters is LORA


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "greater than or equal to 1"),
        ({"rank": 4, "alpha": 0}, "greater than 0"),
        ({"rank": 4, "targets": ["q_prj"]}, "Input should be 'all-linear', 'q_proj'"),
        ({"rank": 4, "targets": []}, "is empty. Name projections: q_proj, k_proj"),
        ({"alpha": 16}, "model.lora.alpha is set, but without model.lora.rank there are no adapters"),
        ({"rank": 4, "dropout": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LoraSettings.model_validate(settings)


def test_targets_and_scale() -> None:
    assert LoraSettings.model_validate({"rank": 4, "targets": "all-linear"}).projections == PROJECTIONS
    chosen = LoraSettings(rank=4, targets=("v_proj", "q_proj", "v_proj"))
    assert chosen.projections == ("q_proj", "v_proj")
    assert (LORA.scale, LORA.model_copy(update={"rslora": True}).scale) == (2.0, 4.0)


def test_experts_get_no_adapters() -> None:
    mixtral = load_config(GOLDEN / "models" / "mixtral")
    with pytest.raises(ConfigError, match=r"experts in place of gate_proj, up_proj, down_proj.*\"o_proj\"\]"):
        check_targets(LORA, mixtral)
    check_targets(LoraSettings(rank=4, targets=("q_proj", "o_proj")), mixtral)


def test_new_adapters_have_the_size_of_their_projections_and_add_nothing() -> None:
    layers = init_adapters(tiny.CONFIG, LORA, jax.random.key(0))["layers"]
    assert layers["q_proj_a"].shape == (2, 16, 4)
    assert layers["q_proj_b"].shape == (2, 4, 4, 4)
    assert layers["o_proj_a"].shape == (2, 4, 4, 4)
    assert layers["down_proj_b"].shape == (2, 4, 16)
    assert sum(leaf.size for leaf in layers.values()) == num_adapter_parameters(tiny.CONFIG, LORA)
    assert all(not leaf.any() for name, leaf in layers.items() if name.endswith("_b"))
    # Uniform within 1 / sqrt(inputs): a sixteenth of them all is further than 15/16 of that.
    largest = float(np.abs(layers["down_proj_a"]).max())
    assert 0.9 * 32**-0.5 < largest <= 32**-0.5


def test_what_an_adapter_is_drawn_from_does_not_depend_on_the_others() -> None:
    alone = init_adapters(tiny.CONFIG, LoraSettings(rank=4, targets=("v_proj",)), jax.random.key(0))
    together = init_adapters(tiny.CONFIG, LORA, jax.random.key(0))
    np.testing.assert_array_equal(alone["layers"]["v_proj_a"], together["layers"]["v_proj_a"])
    assert set(alone["layers"]) == {"v_proj_a", "v_proj_b"}


def test_the_scale_goes_into_b_and_frozen_weights_stay_the_same_objects() -> None:
    base, adapters = tiny.params(), init_adapters(tiny.CONFIG, LORA, jax.random.key(0))
    adapters["layers"]["q_proj_b"] += 1.0
    whole = with_adapters(base, adapters, LORA)
    assert whole["layers"]["q_proj"] is base["layers"]["q_proj"]
    np.testing.assert_array_equal(whole["layers"]["q_proj_b"], 2.0 * adapters["layers"]["q_proj_b"])
    np.testing.assert_array_equal(whole["layers"]["q_proj_a"], adapters["layers"]["q_proj_a"])
    assert with_adapters({}, base, None) is base
