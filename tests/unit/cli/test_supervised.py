from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from forebay.batching.supervised import check_lengths
from forebay.chat import Chat, small_chat
from forebay.cli.imitating import demonstrations, imitate, initial
from forebay.cli.runs import resolve_model
from forebay.config import RunConfig, load_config
from forebay.errors import ConfigError
from forebay.models.checkpoint_io import load_model, read_tensors
from forebay.models.hf import to_hf_tensors

TINY = (
    "model.hidden_size=16",
    "model.intermediate_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.num_kv_heads=1",
    "model.max_position=64",
    "generator.context=32",
    "batching.max_length=32",
    "batching.max_programs=1",
    "batching.rows=2",
    "supervised.epochs=1",
    "supervised.batch_tokens=64",
    "optimizer.learning_rate=1e-2",
)

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    path = tmp_path / "spoken.jsonl"
    turns = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    path.write_text("\n".join(json.dumps({"messages": turns}) for _ in range(8)))
    return path


def config(spoken: Path, *overrides: str) -> RunConfig:
    return load_config(None, [*TINY, f"supervised.demonstrations={spoken}", *overrides])


def test_only_what_the_assistant_says_is_imitated(spoken: Path) -> None:
    examples = demonstrations(config(spoken), small_chat())
    assert len(examples) == 8
    said = small_chat().decode(examples[0].tokens[np.asarray(examples[0].loss_mask, bool)])
    assert said == "2<end>"


def test_a_warm_start_in_bfloat16_is_a_model_that_the_next_run_can_name(spoken: Path, tmp_path: Path) -> None:
    settings = config(spoken, "supervised.dtype=bfloat16")
    imitate(settings, tmp_path / "model")
    tensors = read_tensors(tmp_path / "model")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    next_run = config(spoken, f"model.path={tmp_path / 'model'}")
    model, chat = resolve_model(next_run)
    loaded, params = load_model(tmp_path / "model", num_real_tokens=chat.vocabulary)
    assert loaded == model
    assert params["embedding"].dtype == np.float32
    assert chat.fingerprint == Chat.load(tmp_path / "model").fingerprint == small_chat().fingerprint
    with pytest.raises(ConfigError, match="exists already"):
        imitate(settings, tmp_path / "model")
    with pytest.raises(ConfigError, match="cannot write /proc/none/model"):
        imitate(settings, Path("/proc/none/model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "spoken.jsonl"]


def test_adapters_are_trained_and_written_merged(spoken: Path, tmp_path: Path) -> None:
    settings = config(spoken, "model.lora.rank=2", 'model.lora.targets=["q_proj", "down_proj"]')
    imitate(settings, tmp_path / "model")
    model, _ = resolve_model(settings)
    begun, tensors = to_hf_tensors(initial(settings, model), model), read_tensors(tmp_path / "model")
    moved = {name for name in begun if not np.array_equal(begun[name], tensors[name])}
    assert moved == {name for name in begun if "q_proj" in name or "down_proj" in name}


def test_nothing_to_imitate_is_refused(tmp_path: Path) -> None:
    silent = tmp_path / "silent.jsonl"
    silent.write_text(json.dumps({"messages": [{"role": "user", "content": "1+1"}]}))
    with pytest.raises(ConfigError, match="no assistant message"):
        imitate(config(silent), tmp_path / "model")


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("calculator", "forebay"),
        ("blackjack", "gymnasium"),
        ("frozenlake", "gymnasium"),
        ("guess_number", "textarena"),
        ("reasoning", "reasoning_gym"),
    ],
)
def test_the_demonstrations_of_an_example_fit_it(example: str, package: str) -> None:
    pytest.importorskip(package)
    config = load_config(EXAMPLES / f"{example}.toml")
    made = demonstrations(config, resolve_model(config)[1])
    assert len(made) >= 1000
    check_lengths(made, config.batching)
