"""Separate adapters on a real vLLM server: `FOREBAY_VLLM=/path/to/vllm` names it; without it, skipped.

The server starts without weights: the model and every version of its adapters are what was published.
Expected values come from our own model with the adapters merged, in float32 on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.cli.runs import join_run
from forebay.generation.client import HttpGenerator
from forebay.generation.protocol import Completion, GenerationRequest
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.generation.vllm import WeightControl
from forebay.generation.vllm_server import VllmServer
from forebay.models.checkpoint_io import load_model
from forebay.models.hf import from_hf_tensors, to_hf_tensors
from forebay.models.logprobs import token_logprobs
from forebay.models.lora_layout import to_peft_tensors
from forebay.models.settings import LoraSettings
from forebay.trajectory import PolicyVersion, Sampling
from forebay.weights.adapters import AdapterRecord, merge
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from tests.system.test_vllm import EXAMPLE, POLICY, RUN_S, WAITS_S
from tests.system.vllm_models import draw_adapters
from tests.system.vllm_server import CONTEXT, vllm_serving

LORA = LoraSettings(rank=4, alpha=8.0)
CONFIG, PARAMS = load_model(POLICY)
BASE = to_hf_tensors(PARAMS, CONFIG)
# A machine with other work answers late.
PATIENT = {"vllm_timeout_s": 120.0, "vllm_load_timeout_s": 300.0}
CLOSE = ClientSettings(run_id="mine", adapters=True, unresponsive_s=120.0)
pytestmark = pytest.mark.timeout(1800)
PROMPT = [1, 20, 30, 21, 31, 3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    options = ("--load-format", "dummy", "--enable-lora", "--max-lora-rank", "8")
    with vllm_serving(POLICY, log, *options) as address:
        yield address


@contextlib.asynccontextmanager
async def controlling(address: str, path: Path) -> AsyncIterator[tuple[WeightControl, HttpGenerator]]:
    settings = GeneratorSettings(context=CONTEXT, **PATIENT)
    server, client = VllmServer(address, settings), HttpGenerator(address, settings=CLOSE)
    control = WeightControl(
        server, WeightReader(path), settings, max_kv_staleness=0, run_id="mine", model=CONFIG, lora=LORA
    )
    try:
        yield control, client
    finally:
        control.close()
        await client.close()
        await server.close()


def adapters(number: int) -> dict[str, np.ndarray]:
    return to_peft_tensors(draw_adapters(CONFIG, LORA, seed=number), CONFIG, LORA)


def publish(path: Path, number: int) -> None:
    publisher = WeightPublisher(path, run_id="mine")
    record = AdapterRecord(base=publisher.publish_base(BASE), scale=LORA.scale)
    publisher.publish(PolicyVersion(0, number), adapters(number), adapter=record)


def expected_logprobs(completion: Completion, number: int | None) -> np.ndarray:
    """Score a completion of `PROMPT` with the adapters of a version, or with none."""
    tensors = BASE if number is None else merge(BASE, adapters(number), LORA.scale)
    row = np.concatenate([np.array(PROMPT, np.int32), completion.tokens])[None]
    ones, positions = jnp.ones_like(row), jnp.arange(row.shape[1])[None]
    params = jax.tree.map(jnp.asarray, from_hf_tensors(tensors, CONFIG))
    scores, _ = token_logprobs(params, CONFIG, jnp.asarray(row), ones, positions, jnp.ones(row.shape))
    return np.asarray(scores[0, len(PROMPT) :])


def asked(name: str, max_tokens: int) -> GenerationRequest:
    sampling = Sampling(temperature=1.0)
    prompt = np.array(PROMPT, np.int32)
    return GenerationRequest(request_id=name, prompt=prompt, sampling=sampling, max_tokens=max_tokens, seed=3)


def test_adapters_change_under_a_running_request(server: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with controlling(server, tmp_path) as (control, client):
            # How fast the server is, is not known: try waits until an update cuts a completion in two.
            for first, wait_s in enumerate(WAITS_S):
                versions = [2 * first, 2 * first + 1]
                publish(tmp_path, versions[0])
                await control.look()
                before = await client.generate(asked("before", 60))
                np.testing.assert_allclose(before.logprobs, expected_logprobs(before, versions[0]), atol=1e-3)
                running = asyncio.create_task(client.generate(asked("across", 240)))
                await asyncio.sleep(wait_s)
                publish(tmp_path, versions[1])
                await control.look()
                across = await running
                if len(across.version_spans) == 2:
                    break
            after = await client.generate(asked("after", 60))
        assert [span.version.version for span in across.version_spans] == versions
        cut = across.version_spans[0].num_tokens
        for part, number in ((slice(0, cut), versions[0]), (slice(cut, None), versions[1])):
            wanted = expected_logprobs(across, number)[part]
            np.testing.assert_allclose(across.logprobs[part], wanted, atol=1e-3)
        np.testing.assert_allclose(after.logprobs, expected_logprobs(after, versions[1]), atol=1e-3)
        for other in (versions[0], None):
            assert np.abs(after.logprobs - expected_logprobs(after, other)).max() > 0.01, "both say the same"

    asyncio.run(scenario())


def test_a_run_trains_adapters_on_what_vllm_samples_with_them(server: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [f"generator.vllm={server}", "run.name=run", f"run.directory={tmp_path}", "learner.steps=4"]
    overrides += ["learner.eval_every=0", "batching.groups=4", "actors.episodes_per_process=24"]
    overrides += [
        "environment.calculator.latency.mean_s=0.05",
        "environment.calculator.episode_timeout_s=120",
    ]
    overrides += ["environment.calculator.latency.straggler_probability=0.0"]
    overrides += [f"generator.{name}={value}" for name, value in PATIENT.items()]
    overrides += ["model.lora.rank=4", "weights.adapters=separate"]
    command = [sys.executable, "-m", "forebay", "train", str(EXAMPLE), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["lost"], summary["repeated"]) == (4, 0, 0)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [json.loads(line) for line in (run / "logs" / "generator.jsonl").read_text().splitlines()]
    assert metrics[0]["logprob_mismatch"] < 1e-4, "the first version was not what vLLM sampled with"
    assert updates[0]["step"] == 0
    assert len(updates) >= 2, "vLLM was never updated while the run went on"
    assert WeightReader(join_run(run).layout.weights).manifest(PolicyVersion(0, 4)).adapter is not None
