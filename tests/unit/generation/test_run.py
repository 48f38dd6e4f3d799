from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError, ModelError
from forebay.generation.run import GeneratorService, bind, model_fingerprint
from forebay.generation.settings import GeneratorSettings
from forebay.models.checkpoint_io import read_tensors
from forebay.models.config import load_config
from forebay.trajectory import PolicyVersion
from tests.unit.generation.fakes import request, version

MODEL = Path(__file__).parents[2] / "golden" / "models" / "tiny-vocab40"
CONFIG = load_config(MODEL, num_real_tokens=37)
SETTINGS = GeneratorSettings(
    slots=2, context=64, decode_block=3, prefill_chunks=(16,), prefill_rows=1, poll_weights_s=0.005
)


class Published:
    """A weight directory in memory."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.tensors, self.marker = tensors, version(1)

    def latest(self) -> PolicyVersion:
        return self.marker

    def load(self, wanted: PolicyVersion | None = None) -> tuple[PolicyVersion, Mapping[str, np.ndarray]]:
        return wanted or self.marker, self.tensors


def test_c76_an_address_open_to_the_network_needs_a_token() -> None:
    with pytest.raises(ConfigError, match=r"open to the network.*token_env") as caught:
        bind("0.0.0.0", 0, None)
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="open to the network"):
        bind("example.org", 0, None)
    for host in ("127.0.0.1", "localhost"):
        bind(host, 0, None).close()
    bind("0.0.0.0", 0, "secret").close()


def test_a_taken_port_is_named_with_a_remedy() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*Choose another generator\.port"):
            bind("127.0.0.1", port, None)


def test_fingerprint_tells_architectures_apart() -> None:
    assert model_fingerprint(CONFIG) == model_fingerprint(load_config(MODEL, num_real_tokens=37))
    assert model_fingerprint(CONFIG) != model_fingerprint(dataclasses.replace(CONFIG, rope_theta=500_000.0))


def test_a_service_follows_the_weights_and_compiles_nothing_on_the_way() -> None:
    async def scenario() -> None:
        source = Published(read_tensors(MODEL))
        service = GeneratorService(CONFIG, source, SETTINGS, clock=SystemClock())
        service.start()
        try:
            while service.generator.state == "starting":
                await asyncio.sleep(0.01)
            first = await service.generator.generate(request("a", [1, 2, 3], max_tokens=5))
            assert first.version_spans[0].version == version(1)
            warm = len(service.compiles.programs)
            source.marker = version(7)
            held = await service.generator.generate(
                request("b", [1, 2, 3], max_tokens=5, min_version=version(7))
            )
            assert held.version_spans[0].version == version(7)
            assert held.tokens.tolist() == first.tokens.tolist()
            assert len(service.compiles.programs) == warm
        finally:
            await asyncio.to_thread(service.stop)

    asyncio.run(scenario())


def test_weights_of_another_model_end_the_service_with_the_reason() -> None:
    async def scenario() -> None:
        tensors = {name: tensor for name, tensor in read_tensors(MODEL).items() if "norm" not in name}
        service = GeneratorService(CONFIG, Published(tensors), SETTINGS, clock=SystemClock())
        service.start()
        while service.generator.state == "starting":
            await asyncio.sleep(0.01)
        assert isinstance(service.generator.failure, ModelError)
        await asyncio.to_thread(service.stop)

    asyncio.run(scenario())


def test_context_beyond_the_model_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="longest sequence of the model"):
        GeneratorService(CONFIG, Published({}), GeneratorSettings(context=128), clock=SystemClock())
