"""What the generator and the environments take, measured alone and before any run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.prediction_study.machinery import BASE, generator_command
from benchmarks.prediction_study.settings import Waits
from forebay.cli.roles import free_port
from forebay.cli.runs import Run, join_run
from forebay.errors import GenerationError, PeerFailedError
from forebay.generation.client import HttpGenerator
from forebay.generation.protocol import GenerationRequest
from forebay.launch import divide_cpus
from forebay.launch.placement import CPUS_VARIABLE
from forebay.planner.distribution import sampled
from forebay.planner.profile import GeneratorLevel, GeneratorProfile, Origin, Profile, read_profile
from forebay.trajectory import Sampling

_LOADS: Final = (1, 4, 12, 32, 64)
_READY_S: Final = 120.0
_PROMPT_TOKENS: Final = 40
_AUDIT_LEVELS: Final = "4,16,64"
_AUDIT_S: Final = 30.0
_AUDIT_TIMEOUT_S: Final = 600.0


def measure_generator(run_path: Path, origin: Origin, window_s: float = 3.0) -> GeneratorProfile:
    """Start a generator alone on a run's weights and call it at rising load.

    Args:
        run_path: A run that has published weights.
        origin: Where and when.
        window_s: Time of each load.

    Raises:
        PeerFailedError: It does not come up.
    """
    run, port = join_run(run_path), free_port()
    others = divide_cpus(sorted(os.sched_getaffinity(0)))[1]
    env = os.environ | {CPUS_VARIABLE: ",".join(map(str, others))}
    log = (run_path / "logs" / "generator-alone.log").open("wb")
    with log, subprocess.Popen(generator_command(run_path, port), env=env, stderr=log) as process:
        before = os.sched_getaffinity(0)
        try:
            # Whoever calls shares the core of the generator, as actors do.
            os.sched_setaffinity(0, set(others))
            levels = asyncio.run(_levels(run, f"http://127.0.0.1:{port}", window_s))
        finally:
            os.sched_setaffinity(0, before)
            process.terminate()
    return GeneratorProfile(origin=origin, slots=run.config.generator.slots, levels=tuple(levels))


def measure_environments(wanted: Sequence[Waits], directory: Path) -> dict[str, Profile]:
    """Audit environments, side by side: they do nothing but wait.

    Args:
        wanted: Which.
        directory: Where configurations and profiles go.

    Raises:
        PeerFailedError: An audit fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    running = [(one, _begin_audit(one, directory)) for one in wanted]
    profiles = {}
    try:
        for one, process in running:
            _, errors = process.communicate(timeout=_AUDIT_TIMEOUT_S)
            if process.returncode:
                raise PeerFailedError(f"the audit of {one.name} failed: {errors.decode()[-400:]}")
            profiles[one.name] = read_profile(directory / f"{one.name}.json")
    finally:
        for _, process in running:
            process.kill()
    return profiles


def _begin_audit(waits: Waits, directory: Path) -> subprocess.Popen[bytes]:
    kwargs = {**msgspec.to_builtins(waits), "seed": 1}
    lines = [f'extends = "{BASE}"', "[environment.waits.kwargs]"]
    config, out = directory / f"{waits.name}.toml", directory / f"{waits.name}.json"
    config.write_text(
        "\n".join([*lines, *(f"{name} = {json.dumps(value)}" for name, value in kwargs.items())])
    )
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "forebay", "audit", str(config), "--part", "environment"]
    return subprocess.Popen(
        [
            *command,
            "--concurrency",
            _AUDIT_LEVELS,
            *("--seconds", str(_AUDIT_S), "--action", "1", "--out", out),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


async def _levels(run: Run, address: str, window_s: float) -> list[GeneratorLevel]:
    generator = HttpGenerator(address)
    try:
        await _ready(generator)
        return [
            await _level(generator, run, load, window_s)
            for load in _LOADS
            if load <= run.config.generator.slots
        ]
    finally:
        await generator.close()


async def _ready(generator: HttpGenerator) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        try:
            await generator.info()
        except GenerationError as error:
            if time.monotonic() > deadline_s:
                raise PeerFailedError(f"the generator does not come up: {error}") from error
            await asyncio.sleep(0.2)
        else:
            return


async def _level(generator: HttpGenerator, run: Run, load: int, window_s: float) -> GeneratorLevel:
    ends_s = time.monotonic() + window_s
    called = await asyncio.gather(*(_call(generator, run, index, ends_s) for index in range(load)))
    durations_s = [duration_s for mine in called for duration_s, _ in mine]
    tokens = sum(count for mine in called for _, count in mine)
    return GeneratorLevel(requests=load, tokens_per_s=tokens / window_s, call_s=sampled(durations_s))


async def _call(generator: HttpGenerator, run: Run, index: int, ends_s: float) -> list[tuple[float, int]]:
    done: list[tuple[float, int]] = []
    while not done or time.monotonic() < ends_s:
        began_s = time.monotonic()
        completion = await generator.generate(_request(run, index, len(done)))
        done.append((time.monotonic() - began_s, len(completion.tokens)))
    return done


def _request(run: Run, index: int, number: int) -> GenerationRequest:
    name = f"probe-{time.monotonic_ns()}-{index}-{number}"
    return GenerationRequest(
        request_id=name,
        episode_id=name,
        prompt=np.full(_PROMPT_TOKENS, 9, np.int32),
        sampling=Sampling(temperature=run.config.actors.temperature),
        max_tokens=run.config.actors.max_turn_tokens,
        stop_tokens=run.chat.stop_tokens,
        seed=index * 1000 + number,
    )
