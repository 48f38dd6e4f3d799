"""forebay against a real vLLM server: `FOREBAY_VLLM=/path/to/vllm` names it; without it, skipped.

The weights are the policy that ships with the demo, in float32 on both sides; what is expected comes from our
own model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

import forebay
from forebay.cli.runs import join_run
from forebay.errors import ConfigError, GenerationError
from forebay.generation.client import HttpGenerator
from forebay.generation.protocol import BadRequestError, Completion, GenerationRequest
from forebay.generation.run import GeneratorService
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.generation.vllm import WeightControl
from forebay.generation.vllm_server import VllmServer, check_vllm
from forebay.models.checkpoint_io import load_model, read_tensors
from forebay.models.logprobs import token_logprobs
from forebay.trajectory import PolicyVersion, Sampling, VersionSpan
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from tests.system.vllm_server import CONTEXT, vllm_serving

POLICY = Path(forebay.__file__).parent / "assets" / "calculator"
EXAMPLE = POLICY.parent / "calculator.toml"
GOLDEN = Path(__file__).parents[1] / "golden" / "models"
RUN_S = 600.0
WAITS_S = (0.4, 0.2, 0.1, 0.05, 0.03, 0.8, 1.6)
VOCABULARY = 64
CLOSE = ClientSettings(vocabulary=VOCABULARY, padded_vocabulary=VOCABULARY)
PROMPTS = ([5, 6, 7], [1, 20, 30, 21, 31, 3], list(range(3, 43)))


def untied_policy(directory: Path) -> Path:
    """Return a copy of the policy with its output head under its own name, as the server wants it."""
    shutil.copytree(POLICY, directory, dirs_exist_ok=True)
    head = {"lm_head.weight": read_tensors(POLICY)["model.embed_tokens.weight"].astype(np.float32)}
    save_file(head, directory / "lm_head.safetensors")
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with vllm_serving(untied_policy(tmp_path_factory.mktemp("policy")), log) as address:
        yield address


@pytest.fixture
def labelled(server: str) -> str:
    label(server, "0.1")
    return server


def label(address: str, text: str) -> None:
    httpx.post(f"{address}/update_weight_version", json={"new_version": text}).raise_for_status()


@contextlib.asynccontextmanager
async def calling(address: str, settings: ClientSettings = CLOSE) -> AsyncIterator[HttpGenerator]:
    client = HttpGenerator(address, settings=settings)
    try:
        yield client
    finally:
        await client.close()


def request(name: str, prompt: list[int], **fields: Any) -> GenerationRequest:
    defaults = {"sampling": Sampling(temperature=0.0), "max_tokens": 24}
    return GenerationRequest(request_id=name, prompt=np.array(prompt, np.int32), **(defaults | fields))


def expected_logprobs(
    prompt: list[int],
    completion: Completion,
    temperature: float,
    real: int = VOCABULARY,
    scale: float = 1.0,
) -> npt.NDArray[np.float32]:
    """Score a completion with our own model, its weights multiplied by `scale`."""
    config, params = load_model(POLICY, num_real_tokens=real)
    row = np.concatenate([np.array(prompt, np.int32), completion.tokens])[None]
    scores, _ = token_logprobs(
        jax.tree.map(lambda leaf: jnp.asarray(leaf) * scale, params),
        config,
        jnp.asarray(row),
        jnp.ones_like(row),
        jnp.arange(row.shape[1])[None],
        jnp.full(row.shape, temperature, jnp.float32),
    )
    return np.asarray(scores[0, len(prompt) :])


def test_it_says_what_it_serves(server: str) -> None:
    async def scenario() -> None:
        async with calling(server) as client:
            label(server, "default")
            with pytest.raises(GenerationError, match=r"not serve weights of this run.*'default'"):
                await client.info()
            label(server, "2.7")
            info = await client.info()
            assert (info.version, info.context) == (PolicyVersion(2, 7), CONTEXT)
            assert (info.vocabulary, info.model) == (VOCABULARY, "policy")

    asyncio.run(scenario())


def test_greedy_tokens_are_those_of_our_engine(labelled: str, tmp_path: Path) -> None:
    requests = [request(f"r{n}", prompt) for n, prompt in enumerate(PROMPTS)]

    async def theirs() -> list[Completion]:
        async with calling(labelled) as client:
            return list(await asyncio.gather(*map(client.generate, requests)))

    async def ours() -> list[Completion]:
        WeightPublisher(tmp_path, run_id="test").publish(PolicyVersion(0, 1), read_tensors(POLICY))
        settings = GeneratorSettings(slots=4, context=CONTEXT, prefill_chunks=(64,), kv_windows=(CONTEXT,))
        service = GeneratorService(load_model(POLICY)[0], WeightReader(tmp_path), settings)
        service.start()
        try:
            while service.generator.state == "starting":
                await asyncio.sleep(0.05)
            return list(await asyncio.gather(*map(service.generator.generate, requests)))
        finally:
            await asyncio.to_thread(service.stop)

    for got, wanted in zip(asyncio.run(theirs()), asyncio.run(ours()), strict=True):
        assert got.tokens.tolist() == wanted.tokens.tolist()
        assert got.finish == wanted.finish == "length"
        np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=1e-3)
        assert got.version_spans == wanted.version_spans


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.7])
def test_logprobs_are_those_of_the_sampled_distribution(labelled: str, temperature: float) -> None:
    async def scenario() -> None:
        unlikely = 0.0
        async with calling(labelled) as client:
            for number, prompt in enumerate(PROMPTS):
                sampling = Sampling(temperature=temperature)
                asked = request(f"t{number}", prompt, sampling=sampling, seed=number, max_tokens=60)
                got = await client.generate(asked)
                wanted = expected_logprobs(prompt, got, temperature)
                np.testing.assert_allclose(got.logprobs, wanted, atol=1e-3)
                unlikely = min(unlikely, float(got.logprobs.min()))
        assert unlikely < -0.05, "nothing unlikely was sampled, so nothing was compared"

    asyncio.run(scenario())


def test_padded_vocabulary_is_never_sampled(labelled: str) -> None:
    real = 20
    hot = Sampling(temperature=2.0)

    async def scenario() -> None:
        whole = CLOSE.model_copy(update={"vocabulary": real})
        async with calling(labelled) as unmasked, calling(labelled, whole) as masked:
            free = await unmasked.generate(request("free", [5, 6, 7], sampling=hot, max_tokens=100))
            assert free.tokens.max() >= real
            got = await masked.generate(request("masked", [5, 6, 7], sampling=hot, max_tokens=100))
            assert got.tokens.max() < real
            np.testing.assert_allclose(got.logprobs, expected_logprobs([5, 6, 7], got, 2.0, real), atol=1e-3)

    asyncio.run(scenario())


def test_a_seed_makes_the_same_tokens_again(labelled: str) -> None:
    async def scenario() -> None:
        async with calling(labelled) as client:

            def ask(name: str, seed: int) -> Any:
                fields = {"sampling": Sampling(temperature=1.7), "seed": seed, "max_tokens": 40}
                return client.generate(request(name, PROMPTS[1], **fields))

            alone = await ask("alone", 7)
            among = await asyncio.gather(*(ask(f"n{seed}", seed) for seed in (5, 6, 7, 8)))
            assert among[2].tokens.tolist() == alone.tokens.tolist()
            assert among[1].tokens.tolist() != alone.tokens.tolist()

    asyncio.run(scenario())


def test_stop_tokens_limits_and_the_end_of_the_context(labelled: str) -> None:
    async def scenario() -> None:
        async with calling(labelled) as client:
            sampling = Sampling(temperature=1.7)
            free = await client.generate(request("a", [5, 6, 7], sampling=sampling, seed=1, max_tokens=40))
            assert (free.finish, len(free.tokens)) == ("length", 40)
            stop = int(free.tokens[20])
            first = free.tokens.tolist().index(stop)
            ended = await client.generate(
                request("b", [5, 6, 7], sampling=sampling, seed=1, max_tokens=40, stop_tokens=(stop,))
            )
            assert ended.finish == "stop"
            assert ended.tokens.tolist() == free.tokens[: first + 1].tolist()
            # The model's own end-of-sequence id does not end a request that does not ask for it.
            whole = await client.generate(request("c", [5] * 200, max_tokens=CONTEXT - 200))
            assert (whole.finish, len(whole.tokens)) == ("length", CONTEXT - 200)

    asyncio.run(scenario())


def test_requests_that_cannot_be_served_are_refused_once(labelled: str) -> None:
    async def scenario() -> None:
        async with calling(labelled) as client:
            with pytest.raises(BadRequestError, match="out of vocabulary"):
                await client.generate(request("a", [5, 700]))
            with pytest.raises(BadRequestError, match="answered 400"):
                await client.generate(request("b", [5] * (CONTEXT + 1)))
            with pytest.raises(BadRequestError, match="answered 400"):
                await client.generate(request("c", []))
            assert client.retries == 0

    asyncio.run(scenario())


def test_abort_and_deadline_keep_what_was_sampled(labelled: str) -> None:
    async def aborted_after(client: HttpGenerator, wait_s: float) -> Completion:
        running = asyncio.create_task(client.generate(request("a", [5, 6, 7], max_tokens=250)))
        await asyncio.sleep(wait_s)
        await client.abort("a")
        return await running

    async def scenario() -> None:
        async with calling(labelled) as client:
            await client.generate(request("first", [5, 6, 7]))  # a new server takes seconds for its first
            await client.abort("unknown")
            await client.release("unknown")
            # How fast the server is, is not known: try waits until one cuts a completion in two.
            for wait_s in WAITS_S:
                aborted = await aborted_after(client, wait_s)
                assert aborted.finish in ("abort", "length")
                if aborted.finish == "abort" and len(aborted.tokens):
                    break
            assert 0 < len(aborted.tokens) < 250
            for wait_s in WAITS_S:
                late = await client.generate(request("b", [5, 6, 7], max_tokens=250, deadline_s=wait_s))
                assert late.finish in ("deadline", "length")
                if late.finish == "deadline" and len(late.tokens):
                    break
            assert 0 < len(late.tokens) < 250
            for cut in (aborted, late):
                assert cut.version_spans[0].version == PolicyVersion(0, 1)
                assert sum(span.num_tokens for span in cut.version_spans) == len(cut.tokens)
                np.testing.assert_allclose(cut.logprobs, expected_logprobs([5, 6, 7], cut, 1.0), atol=1e-3)

    asyncio.run(scenario())


def test_min_version_holds_a_request_until_its_label(labelled: str) -> None:
    async def scenario() -> None:
        async with calling(labelled) as client:
            wanted = PolicyVersion(0, 2)
            never = await client.generate(request("a", [5, 6], min_version=wanted, deadline_s=0.3))
            assert (never.finish, len(never.tokens)) == ("deadline", 0)
            held = asyncio.create_task(client.generate(request("b", [5, 6], min_version=wanted)))
            await asyncio.sleep(0.3)
            assert not held.done()
            label(labelled, "0.2/0.1")
            got = await held
            assert {(span.version, span.kv_version) for span in got.version_spans} == {
                (wanted, PolicyVersion(0, 1))
            }
            assert got.wait_s > 0.2

    asyncio.run(scenario())


def test_a_server_that_lost_its_label_is_waited_for(labelled: str) -> None:
    async def scenario() -> None:
        async with calling(labelled) as client:
            await client.generate(request("a", [5, 6]))
            label(labelled, "default")  # what a restarted server says
            waiting = asyncio.create_task(client.generate(request("b", [5, 6])))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            label(labelled, "0.3")
            got = await waiting
            assert [span.version for span in got.version_spans] == [PolicyVersion(0, 3)]

    asyncio.run(scenario())


def test_this_server_is_one_that_forebay_takes(server: str) -> None:
    settings = GeneratorSettings(vllm=(server,), context=CONTEXT)
    asyncio.run(check_vllm(settings, token=None, model=load_model(POLICY)[0]))
    with pytest.raises(ConfigError, match=f"--max-model-len {CONTEXT}, limit >= 512"):
        asyncio.run(check_vllm(settings.model_copy(update={"context": 512}), token=None))
    other = load_model(GOLDEN / "tiny-untied")[0]
    with pytest.raises(ConfigError, match=r"serves another model: .*got 64, limit 37"):
        asyncio.run(check_vllm(settings, token=None, model=other))


def publish(path: Path, number: int, scale: float) -> None:
    tensors = {name: tensor.astype(np.float32) * scale for name, tensor in read_tensors(POLICY).items()}
    WeightPublisher(path, run_id="test").publish(PolicyVersion(0, number), tensors)


@contextlib.asynccontextmanager
async def controlling(address: str, path: Path, **fields: Any) -> AsyncIterator[WeightControl]:
    settings = GeneratorSettings(context=CONTEXT)
    server = VllmServer(address, settings)
    fields = {"max_kv_staleness": 8, "model": load_model(POLICY)[0]} | fields
    control = WeightControl(server, WeightReader(path), settings, **fields)
    try:
        yield control
    finally:
        control.close()
        await server.close()


def test_weights_change_under_a_running_request(server: str, tmp_path: Path) -> None:
    asked = {"sampling": Sampling(temperature=1.7), "max_tokens": 240, "seed": 3}
    prompt = [5, 6, 7]

    async def scenario() -> None:
        # A cache of older weights would hide from the comparison below which weights sampled a token.
        async with controlling(server, tmp_path, max_kv_staleness=0) as control, calling(server) as client:
            # How fast the server is, is not known: try waits until an update cuts a completion in two.
            for first, wait_s in enumerate(WAITS_S):
                versions = [2 * first, 2 * first + 1]
                publish(tmp_path, versions[0], 1.0)
                await control.look()
                before = await client.generate(request("before", prompt, **asked))
                running = asyncio.create_task(client.generate(request("across", prompt, **asked)))
                await asyncio.sleep(wait_s)
                publish(tmp_path, versions[1], 0.9)
                await control.look()
                across = await running
                if len(across.version_spans) == 2:
                    break
        assert [span.version.version for span in across.version_spans] == versions
        assert [span.kv_version.version for span in across.version_spans] == versions
        cut = across.version_spans[0].num_tokens
        assert across.tokens[:cut].tolist() == before.tokens[:cut].tolist()
        for part, scale in ((slice(0, cut), 1.0), (slice(cut, None), 0.9)):
            wanted = expected_logprobs(prompt, across, 1.7, scale=scale)[part]
            np.testing.assert_allclose(across.logprobs[part], wanted, atol=1e-3)
        other = expected_logprobs(prompt, across, 1.7, scale=1.0)[cut:]
        assert np.abs(across.logprobs[cut:] - other).max() > 0.01, "both weights say the same"

    asyncio.run(scenario())


def test_files_that_vllm_cannot_load_leave_the_version_before(server: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        publish(tmp_path, 1, 1.0)
        async with controlling(server, tmp_path) as control, calling(server) as client:
            await control.look()
            before = await client.generate(request("before", [5, 6, 7]))
            # Well-formed and published whole, but not the tensors of this model.
            tensors = {"model.nothing.weight": np.zeros(4, np.float32)}
            tensors["model.embed_tokens.weight"] = read_tensors(POLICY)["model.embed_tokens.weight"]
            WeightPublisher(tmp_path, run_id="test").publish(PolicyVersion(0, 2), tensors)
            with pytest.raises(GenerationError, match="answered 500"):
                await control.look()
            assert (await client.info()).version == PolicyVersion(0, 1)
            after = await client.generate(request("after", [5, 6, 7]))
            assert after.tokens.tolist() == before.tokens.tolist()
            publish(tmp_path, 3, 0.9)
            await control.look()
            assert (await client.info()).version == PolicyVersion(0, 3)
            later = await client.generate(request("later", [5, 6, 7]))
            wanted = expected_logprobs([5, 6, 7], later, 1.0, scale=0.9)
            np.testing.assert_allclose(later.logprobs, wanted, atol=1e-3)

    asyncio.run(scenario())


def trained_spans(run: Path) -> Iterator[VersionSpan]:
    """Yield the version spans of everything that was trained; the run keeps what it consumed."""
    store = join_run(run).open_store()
    try:
        for entry in store.journal():
            for group_id in entry.group_ids:
                for trajectory in store.read_group(group_id).trajectories:
                    for sequence in trajectory.sequences:
                        yield from sequence.version_spans
    finally:
        store.close()


@pytest.mark.timeout(RUN_S)
def test_a_run_trains_on_what_vllm_samples(server: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [f"generator.vllm={server}", "run.name=run", f"run.directory={tmp_path}", "learner.steps=4"]
    overrides += [
        "learner.eval_every=0",
        "learner.keep_consumed=true",
        "batching.groups=4",
        "actors.episodes_per_process=24",
    ]
    overrides += [
        "environment.calculator.latency.mean_s=0.05",
        "environment.calculator.episode_timeout_s=120",
    ]
    overrides += ["environment.calculator.latency.straggler_probability=0.0"]
    label(server, "0.9/0.9@another-run")  # nothing of a run that used the server before may be trained
    command = [sys.executable, "-m", "forebay", "train", str(EXAMPLE), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["lost"], summary["repeated"]) == (4, 0, 0)
    assert summary["trained"] >= 4 * 4 * 4
    updates = [json.loads(line) for line in (run / "logs" / "generator.jsonl").read_text().splitlines()]
    versions = [update["step"] for update in updates]
    assert versions[0] == 0
    assert versions == sorted(set(versions))
    assert len(versions) >= 2, "vLLM was never updated while the run went on"
    spans = [span.version.version for span in trained_spans(run)]
    assert set(spans) <= set(versions), "a token names a version that vLLM never served"
    assert max(spans) >= 1, "no trained token was sampled by an updated policy"
    label_now = httpx.get(f"{server}/weight_info").json()["weight_version"]
    assert label_now.endswith(f"@{join_run(run).run_id}")
    assert httpx.get(f"{server}/is_paused").json() == {"is_paused": False}
