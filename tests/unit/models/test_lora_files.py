from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from forebay.errors import ConfigError, ForebayError, ModelError
from forebay.models.checkpoint_io import load_config
from forebay.models.config import ModelConfig
from forebay.models.lora_files import (
    CONFIG_FILE,
    TENSOR_FILE,
    check_adapter_files,
    load_adapters,
    read_adapter_settings,
    save_adapters,
)
from forebay.models.settings import LoraSettings

GOLDEN = Path(__file__).parents[2] / "golden"
LORA = LoraSettings(rank=4, alpha=8.0, targets=("all-linear",))


@pytest.fixture
def model() -> ModelConfig:
    return load_config(GOLDEN / "models" / "llama")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a copy of adapters that PEFT wrote, on every projection of the tiny Llama."""
    shutil.copytree(GOLDEN / "lora" / "llama", tmp_path / "adapters")
    return tmp_path / "adapters"


def edit(directory: Path, **changes: Any) -> None:
    path = directory / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_peft_writes_by_default_is_read(directory: Path) -> None:
    assert read_adapter_settings(directory).projections == LORA.projections
    assert read_adapter_settings(directory).scale == 2.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 8}),
        ("alpha_pattern", {"q_proj": 8}),
        ("fan_in_fan_out", True),
        ("layers_to_transform", [0]),
        ("layer_replication", [[0, 1]]),
        ("exclude_modules", ["v_proj"]),
        ("target_parameters", ["mlp.experts"]),
        ("trainable_token_indices", [3]),
        ("init_lora_weights", "pissa"),
        ("peft_type", "IA3"),
        ("a_feature_of_next_year", {"on": True}),
    ],
)
def test_a_feature_that_is_not_computed_is_refused_by_name(directory: Path, name: str, value: Any) -> None:
    edit(directory, **{name: value})
    with pytest.raises(
        ModelError, match=rf"{name} is not supported \(got {repr(value)[:4]!s}".replace("[", r"\[")
    ):
        read_adapter_settings(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 0}, "r must be a positive number"),
        ({"r": "8"}, "r must be a positive number"),
        ({"lora_alpha": -1}, "lora_alpha must be a positive number"),
        ({"lora_alpha": math.inf}, "lora_alpha must be a positive number .got inf"),
        ({"target_modules": ".*_proj"}, "target_modules must be a list"),
        ({"target_modules": ["q_proj", "lm_head"]}, "get no adapters here .got lm_head"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit(directory, **changes)
    with pytest.raises(ModelError, match=message):
        read_adapter_settings(directory)


def test_dropout_is_read_and_said_to_have_no_effect(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(directory, lora_dropout=0.05)
    assert read_adapter_settings(directory).rank == 4
    assert "lora_dropout=0.05 is not applied" in caplog.text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rank": 8}, "rank differs .* Set model.lora.rank=4"),
        ({"alpha": 16.0}, "Set model.lora.alpha=8"),
        ({"rslora": True}, "Set model.lora.rslora=false"),
        ({"targets": ("q_proj",)}, 'Set model.lora.targets=."q_proj", "k_proj"'),
    ],
)
def test_adapters_are_those_that_the_settings_ask_for(
    directory: Path, model: ModelConfig, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_adapter_files(directory, model, LORA.model_copy(update=asked))


def test_adapters_of_another_base_are_refused_with_the_shapes(directory: Path) -> None:
    other = load_config(GOLDEN / "models" / "tiny-tied")
    with pytest.raises(ModelError, match=r"q_proj\.lora_B\.weight has shape \[32, 4\] instead of \[16, 4\]"):
        load_adapters(directory, other, LORA)


def test_missing_unexpected_and_damaged_tensors_are_named(directory: Path, model: ModelConfig) -> None:
    path = directory / TENSOR_FILE
    tensors = load_file(path)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, path)
    with pytest.raises(ModelError, match=f"missing {name}"):
        load_adapters(directory, model, LORA)
    more = "base_model.model.model.vision_tower.layers.0.q_proj.lora_A.weight"
    save_file(tensors | {more: np.zeros((4, 4), np.float32)}, path)
    with pytest.raises(ModelError, match=f"unexpected {more}"):
        load_adapters(directory, model, LORA)
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, path)
    with pytest.raises(ModelError, match=f"tensor {name} holds numbers that are not finite"):
        load_adapters(directory, model, LORA)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match="damaged safetensors file"):
        load_adapters(directory, model, LORA)
    path.unlink()
    with pytest.raises(ModelError, match=r"adapters not found: .*adapter_model\.safetensors"):
        load_adapters(directory, model, LORA)


def test_a_directory_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"adapters not found: .*adapter_config\.json"):
        read_adapter_settings(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{")
    with pytest.raises(ModelError, match="is not valid JSON"):
        read_adapter_settings(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("[]")
    with pytest.raises(ModelError, match="must hold a JSON object"):
        read_adapter_settings(tmp_path)


def test_what_is_there_is_not_written_over(directory: Path, model: ModelConfig) -> None:
    adapters = load_adapters(directory, model, LORA)
    with pytest.raises(ForebayError, match="exists already"):
        save_adapters(directory, adapters, model, LORA)
    assert [path.name for path in directory.parent.iterdir()] == ["adapters"]
