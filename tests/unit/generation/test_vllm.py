"""Weight control against a small real server that behaves as vLLM does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.clock import ManualClock, SystemClock
from forebay.errors import ConfigError, GenerationError, PeerFailedError, WeightsError
from forebay.generation.settings import GeneratorSettings
from forebay.generation.vllm import UNKNOWN_LABEL, WeightControl, WeightUpdate, control_vllm
from forebay.generation.vllm_server import VllmServer, check_vllm
from forebay.models.config import load_config
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from tests.unit.generation.fakes import request, version
from tests.unit.generation.servers import calling, listening
from tests.unit.generation.vllm_app import FakeVllm

MODELS = Path(__file__).parents[2] / "golden" / "models"
SETTINGS = GeneratorSettings(context=256, poll_weights_s=0.005, vllm_timeout_s=5.0, vllm_load_timeout_s=5.0)
UPDATE = ["pause", "load", "label", "resume"]
FIRST_UPDATE = ["pause", "reset", "load", "label", "resume"]


def publish(path: Path, number: int, incarnation: int = 0, keep: int = 3) -> Path:
    publisher = WeightPublisher(path, run_id="run", settings=WeightSettings(keep_versions=keep))
    return publisher.publish(PolicyVersion(incarnation, number), {"w": np.full(4, number, np.float32)})


@contextlib.asynccontextmanager
async def controlling(
    fake: FakeVllm, path: Path, *, settings: GeneratorSettings = SETTINGS, **fields: Any
) -> AsyncIterator[tuple[WeightControl, str]]:
    async with listening(fake.app()) as address:
        server = VllmServer(address, settings)
        control = WeightControl(server, WeightReader(path), settings, **({"max_kv_staleness": 8} | fields))
        try:
            yield control, address
        finally:
            control.close()
            await server.close()


def test_the_label_moves_after_the_weights_and_before_sampling_goes_on(tmp_path: Path) -> None:
    updates: list[WeightUpdate] = []

    async def scenario() -> None:
        fake = FakeVllm()
        async with controlling(fake, tmp_path, report=updates.append, run_id="mine") as (control, _):
            assert not await control.look()
            assert fake.verbs == []
            publish(tmp_path, 4)
            assert await control.look()
            assert (fake.verbs, fake.label, fake.weights) == (FIRST_UPDATE, "0.4/0.4@mine", 4)
            await control.look()
            assert len(fake.verbs) == len(FIRST_UPDATE), "nothing new, nothing done"
            publish(tmp_path, 5)
            await control.look()
            assert fake.verbs[len(FIRST_UPDATE) :] == UPDATE
            assert (fake.label, fake.weights, control.version) == ("0.5/0.4@mine", 5, version(5))

    asyncio.run(scenario())
    assert [(u.version, u.oldest_cache) for u in updates] == [
        (version(4), version(4)),
        (version(5), version(4)),
    ]
    assert all(0 <= u.load_s <= u.paused_s <= u.serving_s for u in updates)


def test_tokens_in_flight_carry_the_version_that_sampled_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, address), calling(address) as client:
            await control.look()
            running = asyncio.create_task(client.generate(request("a", max_tokens=1500)))
            for number in (2, 3):
                await asyncio.sleep(0.05)
                publish(tmp_path, number)
                await control.look()
            completion = await running
        assert [span.version.version for span in completion.version_spans] == [1, 2, 3]
        assert {span.kv_version for span in completion.version_spans} == {version(1)}
        sizes = [span.num_tokens for span in completion.version_spans]
        assert completion.tokens.tolist() == np.repeat([1, 2, 3], sizes).tolist()

    asyncio.run(scenario())


def test_weights_that_cannot_be_taken_back_are_labelled_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, address), calling(address) as client:
            await control.look()
            running = asyncio.create_task(client.generate(request("a", max_tokens=1000)))
            while not fake.running:
                await asyncio.sleep(0.001)
            publish(tmp_path, 2)
            fake.failing.add("load")
            with pytest.raises(GenerationError, match="load failed"):
                await control.look()
            assert (fake.verbs[-1], fake.label) == ("label", UNKNOWN_LABEL)
            late = asyncio.create_task(client.generate(request("b")))
            await asyncio.sleep(0.05)
            assert not fake.dead, "sampled without weights"
            fake.failing.clear()
            await control.look()
            assert (await late).tokens.tolist() == [2, 2, 2, 2]
            completion = await running
            assert [span.version.version for span in completion.version_spans] == [1, 2]

    asyncio.run(scenario())


def test_a_control_that_gives_up_resumes_even_a_server_without_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        fake.failing.add("load")
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path, clock=ManualClock()) as (control, _):
            with pytest.raises(PeerFailedError, match="load failed"):
                await control.run(asyncio.Event())
        assert (fake.verbs[-1], fake.label, fake.going.is_set()) == ("resume", UNKNOWN_LABEL, True)

    asyncio.run(scenario())


def test_a_load_that_takes_too_long_is_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        quick = SETTINGS.model_copy(update={"vllm_load_timeout_s": 0.1})
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path, settings=quick) as (control, _):
            await control.look()
            publish(tmp_path, 2)
            fake.hanging.add("load")
            looking = asyncio.create_task(control.look())
            while fake.weights != 2:
                await asyncio.sleep(0.001)
            fake.hanging.clear()
            with pytest.raises(GenerationError, match="cannot be reached"):
                await looking
            assert (fake.label, fake.weights, fake.going.is_set()) == ("0.1/0.1", 1, True)

    asyncio.run(scenario())


def test_a_failed_load_leaves_the_version_before_and_the_next_look_mends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, address), calling(address) as client:
            await control.look()
            directory = publish(tmp_path, 2)
            real_load = fake.load

            def load(request: Any, body: Any) -> Any:
                if body["kwargs"]["weights_path"] == str(directory):
                    body["kwargs"]["weights_path"] += "-missing"
                return real_load(request, body)

            fake.load = load  # type: ignore[method-assign]
            running = asyncio.create_task(client.generate(request("a", max_tokens=100)))
            while not fake.running:
                await asyncio.sleep(0.001)
            with pytest.raises(GenerationError, match="answered 500"):
                await control.look()
            assert fake.verbs[-5:] == ["pause", "load", "load", "label", "resume"]
            assert (fake.label, fake.weights, control.version) == ("0.1/0.1", 1, version(1))
            fake.load = real_load  # type: ignore[method-assign]
            await control.look()
            assert (fake.label, fake.weights) == ("0.2/0.2", 2)
            completion = await running
        sizes = [span.num_tokens for span in completion.version_spans]
        assert completion.tokens.tolist() == np.repeat([1, 2], sizes).tolist()

    asyncio.run(scenario())


def test_a_label_that_cannot_be_set_takes_the_weights_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, _):
            await control.look()
            publish(tmp_path, 2)
            fake.failing_once.add("label")
            with pytest.raises(GenerationError, match="label failed"):
                await control.look()
            assert (fake.verbs[-1], fake.label, fake.weights) == ("resume", "0.1/0.1", 1)
            fake.failing.add("label")
            with pytest.raises(GenerationError, match="label failed"):
                await control.look()
            assert not fake.going.is_set(), "sampled although nobody knows what the label says"
            fake.failing.clear()
            await control.look()
            assert (fake.verbs[-1], fake.label, fake.weights) == ("resume", "0.2/0.2", 2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "settings", "resets"),
    [
        ({"max_kv_staleness": 2}, SETTINGS, [1, 4, 7]),
        ({"max_kv_staleness": 0}, SETTINGS, [1, 2, 3, 4, 5, 6, 7]),
        (
            {"max_kv_staleness": 8},
            SETTINGS.model_copy(update={"kv_across_versions": "recompute"}),
            [1, 2, 3, 4, 5, 6, 7],
        ),
    ],
)
def test_the_cache_is_dropped_before_it_is_too_old(
    tmp_path: Path, fields: dict[str, int], settings: GeneratorSettings, resets: list[int]
) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        seen: list[int] = []
        async with controlling(fake, tmp_path, settings=settings, **fields) as (control, _):
            for number in range(1, 8):
                fake.verbs.clear()
                publish(tmp_path, number)
                await control.look()
                if "reset" in fake.verbs:
                    seen.append(number)
                    assert fake.verbs.index("pause") < fake.verbs.index("reset") < fake.verbs.index("load")
                oldest = max(reset for reset in resets if reset <= number)
                assert fake.label == f"0.{number}/0.{oldest}"
        assert seen == resets

    asyncio.run(scenario())


def test_another_incarnation_starts_with_an_empty_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 6)
        async with controlling(fake, tmp_path) as (control, _):
            await control.look()
            publish(tmp_path, 5, incarnation=1)
            await control.look()
            assert fake.label == "1.5/1.5"

    asyncio.run(scenario())


def test_a_server_that_was_restarted_is_brought_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(load_format="dummy")
        clock = ManualClock()
        publish(tmp_path, 3)
        async with controlling(fake, tmp_path, clock=clock) as (control, _):
            await control.look()
            fake.restart()
            await control.look()
            assert fake.label == "default", "labels are looked at once a second"
            clock.advance(1.0)
            await control.look()
            assert (fake.label, fake.weights) == ("0.3/0.3", 3)

    asyncio.run(scenario())


def test_torn_files_are_noticed_before_the_server_is_touched(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, _):
            await control.look()
            num_verbs = len(fake.verbs)
            file = publish(tmp_path, 2) / "model.safetensors"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
            with pytest.raises(WeightsError, match="does not match its manifest"):
                await control.look()
            assert len(fake.verbs) == num_verbs
            assert (fake.label, fake.weights) == ("0.1/0.1", 1)

    asyncio.run(scenario())


def test_files_to_go_back_to_outlive_their_retention(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        first = publish(tmp_path, 1, keep=1)
        async with controlling(fake, tmp_path) as (control, _):
            await control.look()
            publish(tmp_path, 2, keep=1)
            assert first.is_dir()
            await control.look()
            publish(tmp_path, 3, keep=1)
            assert not first.exists()

    asyncio.run(scenario())


def test_a_server_that_stays_away_ends_the_control_with_its_cause(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        fake.failing.add("pause")
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path, clock=ManualClock()) as (control, _):
            with pytest.raises(PeerFailedError, match=r"not be updated for 60 s: .*pause failed"):
                await control.run(asyncio.Event())
            assert control.failures > 60
            assert set(fake.verbs) == {"resume"}

    asyncio.run(scenario())


def test_weights_that_are_never_published_end_the_control(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = SETTINGS.model_copy(update={"first_weights_timeout_s": 0.01})
        async with controlling(FakeVllm(), tmp_path, settings=settings, clock=SystemClock()) as (control, _):
            with pytest.raises(PeerFailedError, match=r"no weights were published within 0\.01 s"):
                await control.run(asyncio.Event())

    asyncio.run(scenario())


def test_several_servers_follow_and_one_that_fails_ends_them_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        fakes = [FakeVllm(), FakeVllm()]
        publish(tmp_path, 1)
        async with listening(fakes[0].app()) as one, listening(fakes[1].app()) as two:
            settings = SETTINGS.model_copy(update={"vllm": (one, two), "vllm_patience_s": 0.0})
            stop = asyncio.Event()
            control = asyncio.create_task(control_vllm(tmp_path, settings, max_kv_staleness=8, stop=stop))
            while any(fake.label != "0.1/0.1" for fake in fakes):
                await asyncio.sleep(0.005)
            fakes[1].failing.add("pause")
            publish(tmp_path, 2)
            with pytest.raises(PeerFailedError, match=f"vLLM at {two}"):
                await control
            assert stop.is_set()
            assert all(fake.going.is_set() for fake in fakes)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("started", "words"),
    [
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"scale_out": False}, "--enable-scale-out"),
        ({"logprobs_mode": "raw_logprobs"}, "reports raw_logprobs.*--logprobs-mode processed_logprobs"),
        ({"device": "cpu"}, "--no-enable-chunked-prefill"),
        ({"forebay": True}, "is no vLLM server"),
        ({"root": str(MODELS / "tiny-vocab40")}, "serves another model: .*got 40, limit 37"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused_by_name(started: dict[str, Any], words: str) -> None:
    async def scenario() -> None:
        async with listening(FakeVllm(**started).app()) as address:
            settings = SETTINGS.model_copy(update={"vllm": (address,)})
            with pytest.raises(ConfigError, match=words):
                await check_vllm(settings, token=None, model=load_config(MODELS / "tiny-untied"))

    asyncio.run(scenario())


def test_the_output_head_of_a_tied_model_is_loaded_where_it_would_stay(tmp_path: Path) -> None:
    on_cpu = {"device": "cpu", "chunked": False}
    tied = load_config(MODELS / "tiny-tied")
    names = ["model.embed_tokens.weight", "model.norm.weight"]

    async def scenario() -> None:
        async with controlling(FakeVllm(**on_cpu), tmp_path, model=tied) as (control, _):
            WeightPublisher(tmp_path, run_id="run").publish(
                version(1), {name: np.full((2, 4), 7, np.float32) for name in names}
            )
            with pytest.raises(ConfigError, match=r"would keep the first output head.*--hf-overrides"):
                await control.look()
        fake = FakeVllm(**on_cpu, overrides={"tie_word_embeddings": False})
        async with controlling(fake, tmp_path, model=tied) as (control, _):
            await control.look()
            assert fake.loaded == ["lm_head.weight", *names]
            assert fake.weights == 7, "the head is the embedding"
            assert fake.label == "0.1/0.1"
        async with controlling(FakeVllm(), tmp_path, model=tied) as (control, _):
            await control.look()  # elsewhere the head shares the embedding's memory

    asyncio.run(scenario())


def test_a_server_that_suits_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(root=str(MODELS / "tiny-untied"), load_format="dummy", device="cpu", chunked=False)
        async with listening(fake.app()) as address:
            settings = SETTINGS.model_copy(update={"vllm": (address,)})
            await check_vllm(settings, token=None, model=load_config(MODELS / "tiny-untied"))
            assert fake.load_format == "safetensors"
            longer = settings.model_copy(update={"context": 8192})
            with pytest.raises(ConfigError, match="--max-model-len 4096, limit >= 8192"):
                await check_vllm(longer, token=None)
        with pytest.raises(ConfigError, match=f"no vLLM server at {address}.*vllm serve"):
            await check_vllm(settings, token=None)

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://host", "http://host/v1", "http://"])
def test_addresses_that_are_no_base_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="base addresses like"):
        GeneratorSettings(vllm=(address,))


def test_one_address_needs_no_list() -> None:
    assert GeneratorSettings.model_validate({"vllm": "http://127.0.0.1:8000/"}).vllm == (
        "http://127.0.0.1:8000",
    )
