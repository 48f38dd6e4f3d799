"""Separate adapters on a small real server that behaves as vLLM does; see `vllm_app`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response

from forebay.errors import ConfigError, GenerationError, WeightsError
from forebay.generation.client import HttpGenerator
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.generation.vllm import UNKNOWN_LABEL, WeightControl
from forebay.generation.vllm_server import VllmServer, check_vllm
from forebay.models.settings import LoraSettings
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import AdapterRecord
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from tests.unit.generation.fakes import request, version
from tests.unit.generation.servers import listening
from tests.unit.generation.vllm_app import FakeVllm

SETTINGS = GeneratorSettings(context=256, poll_weights_s=0.005, vllm_timeout_s=5.0, vllm_load_timeout_s=5.0)
LORA = LoraSettings(rank=4, alpha=8.0, targets=("q_proj",))
BASE = {"model.embed_tokens.weight": np.full(4, 100, np.float32)}
NAMES = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight" for side in "AB"]
CLOSE = ClientSettings(run_id="mine", adapters=True)
FIRST = ["pause", "reset", "load", "list_loras", "list_loras", "adapters", "label", "resume"]
NEXT = ["pause", "list_loras", "remove_lora", "list_loras", "label", "resume"]


def publish(path: Path, number: int, **settings: Any) -> None:
    publisher = WeightPublisher(path, run_id="run", settings=WeightSettings(**settings))
    record = AdapterRecord(base=publisher.publish_base(BASE), scale=LORA.scale)
    adapters = {name: np.full(2**10, number, np.float32) for name in NAMES}
    publisher.publish(PolicyVersion(0, number), adapters, adapter=record)


@contextlib.asynccontextmanager
async def controlling(fake: FakeVllm, path: Path) -> AsyncIterator[tuple[WeightControl, HttpGenerator]]:
    async with listening(fake.app()) as address:
        server, client = VllmServer(address, SETTINGS), HttpGenerator(address, settings=CLOSE)
        fields: dict[str, Any] = {"max_kv_staleness": 8, "run_id": "mine", "lora": LORA}
        control = WeightControl(server, WeightReader(path), SETTINGS, **fields)
        try:
            yield control, client
        finally:
            control.close()
            await client.close()
            await server.close()


@pytest.mark.parametrize("shard_bytes", [2**30, 2**10], ids=["one file", "several files"])
def test_the_model_is_loaded_once_and_running_requests_go_on_with_newer_adapters(
    tmp_path: Path, shard_bytes: int
) -> None:
    async def scenario() -> None:
        fake = FakeVllm(max_lora_rank=8)
        async with controlling(fake, tmp_path) as (control, client):
            publish(tmp_path, 4, keep_versions=1, max_shard_bytes=shard_bytes)
            await control.look()
            assert fake.verbs == FIRST
            running = asyncio.create_task(client.generate(request("a", max_tokens=1000)))
            while not fake.running:
                await asyncio.sleep(0.001)
            publish(tmp_path, 5, keep_versions=1, max_shard_bytes=shard_bytes)
            await control.look()
            assert fake.verbs[len(FIRST) :] == NEXT
            completion = await running
            assert [span.version for span in completion.version_spans] == [version(4), version(5)]
            sizes = [span.num_tokens for span in completion.version_spans]
            assert completion.tokens.tolist() == np.repeat([104, 105], sizes).tolist()
            assert fake.bodies[0]["model"] == "forebay-mine"
            (directory,) = fake.adapters.values()
            entry = json.loads((directory / "adapter_config.json").read_text())
            assert (entry["r"], entry["lora_alpha"], entry["target_modules"]) == (4, 8, ["q_proj"])

    asyncio.run(scenario())


def test_a_server_that_was_restarted_gets_model_and_adapters_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(max_lora_rank=8)
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, client):
            await control.look()
            assert (await client.generate(request("a"))).tokens.tolist() == [101] * 4
            fake.restart()
            early = asyncio.create_task(client.generate(request("b")))
            await asyncio.sleep(0.05)
            assert not early.done(), "a server without adapters answered"
            control._checked_s -= 10
            await control.look()
            assert fake.verbs == FIRST + FIRST
            assert (await early).tokens.tolist() == [101] * 4

    asyncio.run(scenario())


def test_a_load_that_fails_leaves_the_adapters_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(max_lora_rank=8)
        publish(tmp_path, 1)
        async with controlling(fake, tmp_path) as (control, client):
            await control.look()
            publish(tmp_path, 2)
            fake.failing_once.add("remove_lora")
            with pytest.raises(GenerationError, match="remove_lora failed"):
                await control.look()
            assert fake.label == "0.1/0.1@mine"
            assert (await client.generate(request("a"))).tokens.tolist() == [101] * 4
            await control.look()
            assert (await client.generate(request("b"))).tokens.tolist() == [102] * 4

    asyncio.run(scenario())


def test_whole_weights_and_adapters_are_not_taken_for_one_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(max_lora_rank=8)
        WeightPublisher(tmp_path, run_id="run").publish(PolicyVersion(0, 1), BASE)
        async with controlling(fake, tmp_path) as (control, _):
            with pytest.raises(WeightsError, match=r"holds whole weights, and .* needs adapters only"):
                await control.look()
            assert fake.label != UNKNOWN_LABEL and fake.verbs == []

    asyncio.run(scenario())


def test_adapters_of_another_directory_are_not_sampled_with_under_a_new_label(tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(max_lora_rank=8)
        publish(tmp_path / "new", 2)
        fake.adapters["forebay-mine"] = tmp_path / "old" / "vllm-0"
        async with controlling(fake, tmp_path / "new") as (control, _):
            with pytest.raises(GenerationError, match=r"from another directory \(got .*old/vllm-0"):
                await control.look()
            assert fake.label == UNKNOWN_LABEL and not fake.going.is_set()

    asyncio.run(scenario())


def test_a_server_that_never_gets_the_adapters_is_asked_now_and_then_until_the_deadline(
    tmp_path: Path,
) -> None:
    class Counting(FakeVllm):
        asked = 0

        async def generate(self, request: Request) -> Response:
            self.asked += 1
            return await super().generate(request)

    async def scenario() -> None:
        fake = Counting(max_lora_rank=8)
        fake.label = "0.1/0.1@mine"
        async with controlling(fake, tmp_path) as (_, client):
            completion = await client.generate(request("a", deadline_s=0.5))
            assert completion.finish == "deadline"
            assert 1 <= fake.asked <= 11, "it was asked without a pause"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("started", "option"),
    [
        ({}, "--enable-lora --max-lora-rank 8"),
        ({"max_lora_rank": 1}, "--enable-lora --max-lora-rank 8"),
        ({"max_lora_rank": 8, "lora_route": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ],
)
def test_a_server_that_takes_no_such_adapters_is_refused_with_the_option(
    started: dict[str, Any], option: str
) -> None:
    async def scenario() -> None:
        async with listening(FakeVllm(**started).app()) as address:
            settings = SETTINGS.model_copy(update={"vllm": (address,)})
            with pytest.raises(ConfigError, match=option):
                await check_vllm(settings, token=None, lora=LORA)
            if not started:
                await check_vllm(settings, token=None)

    asyncio.run(scenario())
