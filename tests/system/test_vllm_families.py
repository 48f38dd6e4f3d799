"""What forebay writes, in a real vLLM: every family, adapters, and what a run exports.

`FOREBAY_VLLM=/path/to/bin/vllm` names it, whose Python is beside it; without it, skipped. Both sides compute
in float32. Expected values come from our own forward pass, which `tests/golden/test_families.py` holds to
transformers.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forebay
from forebay.models.checkpoint_io import load_model, save_model
from forebay.models.config import ModelConfig
from forebay.models.hf import from_hf_tensors, to_hf_tensors, without_padding
from forebay.models.logprobs import hidden_logprobs
from forebay.models.lora_files import save_adapters
from forebay.models.lora_layout import to_peft_tensors
from forebay.models.params import Params
from forebay.models.settings import LoraSettings
from forebay.models.transformer import forward, output_logits, output_table
from forebay.weights.adapters import merge
from tests.system.vllm_models import ENTRIES, REFUSAL, REFUSED, config_of, draw, draw_adapters
from tests.system.vllm_server import ENVIRONMENT, executable

SCORING = Path(__file__).with_name("vllm_scoring.py")
ASSETS = Path(forebay.__file__).parent / "assets"
NUM_TOKENS = 24
PROMPTS = tuple(np.random.default_rng(7).integers(3, 51, length).tolist() for length in (2, 17, 60))
# No mixture of experts: with adapters, vLLM computes experts by Triton alone, which its CPU build lacks.
ADAPTERS = {
    "llama, rope of Llama 3": LoraSettings(rank=4, alpha=8),
    "llama, tied as SmolLM2": LoraSettings(rank=16, alpha=8, targets=("q_proj", "down_proj")),
    "mistral, window": LoraSettings(rank=8, alpha=12.5),
    "qwen2, YaRN, tied": LoraSettings(rank=3, alpha=4, rslora=True),
    "qwen3": LoraSettings(rank=8, alpha=8),
    "gemma2": LoraSettings(rank=8, alpha=8),
    "gemma3": LoraSettings(rank=8, alpha=8),
}
pytestmark = pytest.mark.timeout(1800)


class Job(NamedTuple):
    """What vLLM is to say something to `PROMPTS` with."""

    model: Path
    adapter: Path | None = None
    rank: int = 0


def scored(directory: Path, jobs: Sequence[Job]) -> list[Any]:
    """Return what vLLM says with each model: its answers to the prompts, or its error."""
    python = Path(executable()).with_name("python")
    wanted = {"prompts": PROMPTS, "max_tokens": NUM_TOKENS}
    paths = directory / "jobs.json", directory / "results.jsonl"
    paths[0].write_text(json.dumps([wanted | job._asdict() for job in jobs], default=str))
    environ = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    done = subprocess.run(
        [python, SCORING, *paths], env=environ | os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in paths[1].read_text().splitlines()]
    assert len(results) == len(jobs)
    return results


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM says with every checkpoint as we write it, and with adapters beside it; by name."""
    executable()
    directory = tmp_path_factory.mktemp("families")
    jobs, with_adapters = dict[str, Job](), dict[str, Job]()
    for number, name in enumerate((*ENTRIES, *REFUSED)):
        config, path = config_of(name), directory / str(number)
        base, written = without_padding(to_hf_tensors(draw(config), config), config)
        save_model(path, written, base, max_shard_bytes=100_000)
        jobs[name] = Job(path)
        if name in ADAPTERS:
            lora, adapter = ADAPTERS[name], directory / f"{number}-adapters"
            save_adapters(adapter, draw_adapters(config, lora), config, lora, base=str(path))
            with_adapters[adapted(name)] = Job(path, adapter, lora.rank or 0)
    jobs |= with_adapters
    return dict(zip(jobs, scored(directory, list(jobs.values())), strict=True))


def adapted(name: str) -> str:
    return f"{name}, adapted"


def assert_same(answers: Any, config: ModelConfig, params: Params) -> None:
    """Assert that vLLM's logprobs are ours, and that its greedy tokens are those that we find likeliest."""
    assert isinstance(answers, list), answers
    rows = [prompt + answer["tokens"] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    worst, compared = 0.0, []
    for row, prompt, answer, ours in zip(rows, PROMPTS, answers, said(params, config, rows), strict=True):
        theirs = np.array(answer["prompt_logprobs"] + answer["logprobs"])
        worst = max(worst, float(np.abs(theirs - ours.logprobs[-len(theirs) :]).max()))
        compared += theirs.tolist()
        assert len(row) == len(prompt) + NUM_TOKENS
        assert ours.likeliest[len(prompt) - 1 : -1].tolist() == answer["tokens"]
    assert len(compared) in (len(rows) * NUM_TOKENS, sum(map(len, rows)) - len(rows))
    assert np.ptp(compared) > 0.1, "all tokens are as likely, so nothing was compared"
    print(f"largest difference of {len(compared)} logprobs: {worst:.1e} nats")
    assert worst < 1e-3


class Said(NamedTuple):
    """What our model says of one sequence [T]: logprobs of its tokens, and the likeliest token after each."""

    logprobs: np.ndarray
    likeliest: np.ndarray


def said(params: Params, config: ModelConfig, rows: Sequence[Sequence[int]]) -> list[Said]:
    lengths = np.array([len(row) for row in rows])
    positions = np.broadcast_to(np.arange(lengths.max()), (len(rows), lengths.max()))
    tokens = np.array([np.pad(row, (0, lengths.max() - len(row))) for row in rows], np.int32)
    segments = (positions < lengths[:, None]).astype(np.int32)
    logprobs, likeliest = map(np.asarray, judged(params, tokens, segments, positions, config))
    return [Said(logprobs[n, :length], likeliest[n, :length]) for n, length in enumerate(lengths)]


@functools.partial(jax.jit, static_argnames="config")
def judged(
    params: Params, tokens: Any, segments: Any, positions: Any, config: ModelConfig
) -> tuple[jax.Array, jax.Array]:
    hidden = forward(params, config, tokens, segments, positions)
    states = hidden.reshape(-1, config.hidden_size)
    logprobs, _ = hidden_logprobs(params, config, states, tokens, segments, jnp.ones(tokens.shape))
    logits = output_logits(hidden, output_table(params, hidden.dtype), config)
    return logprobs, logits.argmax(axis=-1)


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_written_of_a_family_says_the_same_in_vllm(name: str, answers: dict[str, Any]) -> None:
    config = config_of(name)
    assert_same(answers[name], config, draw(config))


@pytest.mark.parametrize("name", REFUSED)
def test_what_vllm_cannot_serve_it_refuses_by_name(name: str, answers: dict[str, Any]) -> None:
    assert REFUSAL in answers[name]


@pytest.mark.parametrize("name", ADAPTERS)
def test_written_adapters_say_in_vllm_what_the_merged_model_says(name: str, answers: dict[str, Any]) -> None:
    config, lora = config_of(name), ADAPTERS[name]
    adapters = to_peft_tensors(draw_adapters(config, lora), config, lora)
    merged = merge(to_hf_tensors(draw(config), config), adapters, lora.scale)
    assert_same(answers[adapted(name)], config, from_hf_tensors(merged, config))


def test_what_a_run_exports_says_the_same_in_vllm_as_adapters_and_merged(tmp_path: Path) -> None:
    executable()
    run = tmp_path / "runs" / "lora"
    settings = ["run.name=lora", f"run.directory={tmp_path / 'runs'}", "learner.steps=2", "batching.groups=4"]
    settings += ["learner.eval_every=0", "actors.episodes_per_process=24", "learner.checkpoint_every=1"]
    settings += ["model.lora.rank=4", "optimizer.learning_rate=0.01", "optimizer.warmup_steps=0"]
    settings += ["environment.calculator.latency.mean_s=0.05"]
    forebay_command("train", ASSETS / "calculator.toml", *settings)
    forebay_command("export", run, "--to", tmp_path / "adapters", "--adapter")
    forebay_command("export", run, "--to", tmp_path / "model", "--step", "2")
    config, params = load_model(tmp_path / "model")
    jobs = [Job(ASSETS / "calculator", tmp_path / "adapters", 4), Job(tmp_path / "model")]
    separate, merged = scored(tmp_path, jobs)
    assert_same(separate, config, params)
    assert_same(merged, config, params)
    (before,) = said(load_model(ASSETS / "calculator")[1], config, [PROMPTS[2]])
    moved = np.array(merged[2]["prompt_logprobs"]) - before.logprobs[1:]
    assert np.abs(moved).max() > 0.01, "training changed nothing, so nothing was compared"


def forebay_command(*arguments: object) -> None:
    command = [sys.executable, "-m", "forebay", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
