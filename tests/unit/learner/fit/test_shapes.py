from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay.learner.fit.memory import num_parameters
from forebay.learner.fit.shapes import load_model, shape_names

# As published with the models: the number of parameters that Hugging Face counts in their safetensors.
PUBLISHED = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma3-27b": 27_009_346_304,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_published_number_of_parameters(name: str) -> None:
    config = load_model(name)
    assert num_parameters(config) == PUBLISHED[name]
    assert config.num_parameters == PUBLISHED[name]


def test_a_directory_is_read_and_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = load_model("llama3-8b").to_hf() | {"num_hidden_layers": 2}
    (tmp_path / "llama3-8b").mkdir()
    (tmp_path / "llama3-8b" / "config.json").write_text(json.dumps(entry))
    monkeypatch.chdir(tmp_path)
    assert load_model("llama3-8b").num_layers == 2


def test_an_unknown_model_is_told_the_nearest_shape() -> None:
    with pytest.raises(ConfigError, match=r"no such model: Llama-70B .*Did you mean llama3-70b\?"):
        load_model("Llama-70B")


def test_all_shapes_that_are_promised_are_there() -> None:
    assert set(shape_names()) == set(PUBLISHED)
