"""The generator as a process: it follows published weights, drains, dies, and says why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from forebay.generation.client import HttpGenerator
from forebay.generation.pool import GeneratorPool
from forebay.generation.protocol import Completion, GenerationRequest, UnreachableError
from forebay.generation.settings import ClientSettings
from forebay.models.checkpoint_io import read_tensors
from forebay.trajectory import PolicyVersion, Sampling
from forebay.weights.publisher import WeightPublisher

MODEL = Path(__file__).parents[1] / "golden" / "models" / "tiny-vocab40"
CONTEXT = 4096
READY_S = 120.0
SERVER = textwrap.dedent(
    """
    import dataclasses, sys
    from pathlib import Path
    from forebay.errors import ForebayError
    from forebay.generation.run import run_server
    from forebay.generation.settings import GeneratorSettings
    from forebay.models.config import load_config

    settings = GeneratorSettings.model_validate_json(sys.argv[3])
    model = dataclasses.replace(load_config(Path(sys.argv[1]), 37), max_position=settings.context)
    try:
        run_server(model, Path(sys.argv[2]), settings, announce=lambda address: print(address, flush=True))
    except ForebayError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    """
)


class Server:
    """A generator process."""

    def __init__(self, weights: Path, log: Path, **settings: Any) -> None:
        fields = {"port": 0, "slots": 2, "context": CONTEXT, "kv_windows": [CONTEXT], "prefill_chunks": [16]}
        fields |= {"prefill_rows": 1, "poll_weights_s": 0.01} | settings
        arguments = [str(MODEL), str(weights), json.dumps(fields)]
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                text=True,
            )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Return the exit code and what it wrote."""
        return self.process.wait(timeout=READY_S), self.log.read_text()


@contextlib.contextmanager
def servers(*paths: tuple[Path, Path]) -> Iterator[list[Server]]:
    started = [Server(weights, log) for weights, log in paths]
    try:
        yield started
    finally:
        for server in started:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait()
            assert server.process.stdout is not None
            server.process.stdout.close()


async def until(server: Server, *, running: int, waiting: int = 0) -> None:
    """Wait until a server has that many requests, or more."""
    async with asyncio.timeout(READY_S), aiohttp.ClientSession(server.address) as session:
        while True:
            async with session.get("/health") as answer:
                health = await answer.json()
            if health["running"] >= running and health["waiting"] >= waiting:
                return
            await asyncio.sleep(0.01)


def publish(publisher: WeightPublisher, number: int) -> None:
    tensors = {name: tensor * (1 + number / 64) for name, tensor in read_tensors(MODEL).items()}
    publisher.publish(PolicyVersion(0, number), tensors)


def ask(name: str, **fields: Any) -> GenerationRequest:
    fields = {"sampling": Sampling(), "max_tokens": 16, "seed": 1} | fields
    return GenerationRequest(request_id=name, prompt=np.array([3, 1, 4, 1, 5], np.int32), **fields)


def test_follows_weights_in_flight_and_drains_on_sigterm(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        client = HttpGenerator(server.address, settings=ClientSettings(busy_retry_s=0.0))
        publisher = WeightPublisher(tmp_path / "weights", run_id="run")
        publish(publisher, 0)
        await client.wait_ready(READY_S)
        assert (await client.generate(ask("a"))).version_spans[0].version == PolicyVersion(0, 0)

        long = asyncio.create_task(client.generate(ask("b", max_tokens=3000)))
        await until(server, running=1)
        held = asyncio.create_task(client.generate(ask("c", min_version=PolicyVersion(0, 2))))
        await until(server, running=1, waiting=1)
        assert not held.done()
        publish(publisher, 1)
        while (await client.info()).version < (0, 1):
            await asyncio.sleep(0.01)
        publish(publisher, 2)
        assert (await held).version_spans[0].version == PolicyVersion(0, 2)
        check_swapped(await long)

        last = asyncio.create_task(client.generate(ask("d", max_tokens=1000)))
        await until(server, running=1)
        server.process.send_signal(signal.SIGTERM)
        assert len((await last).tokens) == 1000
        await client.close()

    with servers((tmp_path / "weights", tmp_path / "log")) as (server,):
        asyncio.run(scenario(server))
        assert server.end() == (0, "")


def check_swapped(completion: Completion) -> None:
    assert len(completion.tokens) == 3000
    assert sum(span.num_tokens for span in completion.version_spans) == 3000
    versions = [span.version.version for span in completion.version_spans]
    assert versions == sorted(versions)
    assert versions[0] == 0
    assert versions[-1] == 2
    assert {span.kv_version for span in completion.version_spans} == {PolicyVersion(0, 0)}


def test_a_killed_generator_hands_its_requests_to_another(tmp_path: Path) -> None:
    publisher = WeightPublisher(tmp_path / "weights", run_id="run")
    publish(publisher, 0)

    async def scenario(dying: Server, other: Server) -> None:
        settings = ClientSettings(retry_s=0.2)
        members = [HttpGenerator(server.address, settings=settings) for server in (dying, other)]
        for member in members:
            await member.wait_ready(READY_S)
        expected = await members[1].generate(ask("a", max_tokens=2000))
        pool = GeneratorPool(members)
        task = asyncio.create_task(pool.generate(ask("a", max_tokens=2000)))
        await until(dying, running=1)
        dying.process.kill()
        completion = await task
        assert pool.failovers == 1
        assert completion.tokens.tolist() == expected.tokens.tolist()
        assert completion.logprobs.tobytes() == expected.logprobs.tobytes()
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await members[0].generate(ask("b"))
        await pool.close()

    weights = tmp_path / "weights"
    with servers((weights, tmp_path / "log1"), (weights, tmp_path / "log2")) as (dying, other):
        asyncio.run(scenario(dying, other))


def test_exit_codes_say_what_was_wrong(tmp_path: Path) -> None:
    with servers((tmp_path / "none", tmp_path / "log0")) as (holder,):
        port = int(holder.address.rsplit(":", 1)[1])
        taken = Server(tmp_path / "none", tmp_path / "log1", port=port)
        alone = Server(tmp_path / "none", tmp_path / "log2", first_weights_timeout_s=0.1)
        code, log = taken.end()
        assert (code, str(port) in log) == (2, True)
        code, log = alone.end()
        assert code == 4
        assert "no weights were published within 0.1 s" in log
        for server in (taken, alone):
            assert server.process.stdout is not None
            server.process.stdout.close()
        # A generator that still waits for its first weights ends at once.
        holder.process.send_signal(signal.SIGTERM)
        assert holder.end()[0] == 0
