"""What generator, learner and environments take, measured by the product's own audit before any run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.prediction_study.machinery import BASE, generator_command
from benchmarks.prediction_study.settings import Setting, Waits
from forebay.cli.roles import free_port
from forebay.errors import GenerationError, PeerFailedError
from forebay.generation.client import HttpGenerator
from forebay.launch import divide_cpus
from forebay.launch.placement import CPUS_VARIABLE
from forebay.planner.profile import Profile, read_profile

_GENERATOR_S: Final = 30.0
_LEARNER_S: Final = 20.0
_ENVIRONMENT_S: Final = 30.0
_ENVIRONMENT_LEVELS: Final = "4,16,64"
_TIMEOUT_S: Final = 600.0
_READY_S: Final = 120.0


def measure_generator(run_path: Path, setting: Setting, directory: Path) -> Path:
    """Start a generator alone on a run's weights and audit it.

    Args:
        run_path: A run that has published weights.
        setting: Of that run: its episodes say what is asked.
        directory: Where configuration and profile go.

    Returns:
        The profile.

    Raises:
        PeerFailedError: The generator does not come up, or the audit fails.
    """
    port, others = free_port(), divide_cpus(sorted(os.sched_getaffinity(0)))[1]
    env = os.environ | {CPUS_VARIABLE: ",".join(map(str, others))}
    log = (run_path / "logs" / "generator-alone.log").open("wb")
    with log, subprocess.Popen(generator_command(run_path, port), env=env, stderr=log) as process:
        before = os.sched_getaffinity(0)
        try:
            # Whoever calls shares the core of the generator, as actors do.
            os.sched_setaffinity(0, set(others))
            address = f"http://127.0.0.1:{port}"
            asyncio.run(_ready(address))
            options = ("--part", "generator", "--generator", address, "--seconds", str(_GENERATOR_S))
            return _ended(*_begin("generator", setting.overrides, directory, *options))
        finally:
            os.sched_setaffinity(0, before)
            process.terminate()


async def _ready(address: str) -> None:
    """Wait until a generator answers."""
    deadline_s = time.monotonic() + _READY_S
    generator = HttpGenerator(address)
    try:
        while True:
            try:
                await generator.info()
            except GenerationError as error:
                if time.monotonic() > deadline_s:
                    raise PeerFailedError(f"the generator does not come up: {error}") from error
                await asyncio.sleep(0.2)
            else:
                return
    finally:
        await generator.close()


def measure_learner(known: Path, setting: Setting, directory: Path) -> Path:
    """Audit the learner, with nothing else at work.

    Args:
        known: The generator's profile: it says how long episodes are.
        setting: Whose batches are trained.
        directory: Where configuration and profile go.

    Returns:
        The profile, the generator's part in it too.

    Raises:
        PeerFailedError: The audit fails.
    """
    options = ("--part", "learner", "--merge", str(known), "--seconds", str(_LEARNER_S))
    return _ended(*_begin("learner", setting.overrides, directory, *options))


def measure_environments(wanted: Sequence[Waits], directory: Path) -> dict[str, Profile]:
    """Audit environments, side by side: they do nothing but wait.

    Args:
        wanted: Which.
        directory: Where configurations and profiles go.

    Raises:
        PeerFailedError: An audit fails.
    """
    options = ("--part", "environment", "--action", "1")
    options += ("--concurrency", _ENVIRONMENT_LEVELS, "--seconds", str(_ENVIRONMENT_S))
    running = {one.name: _begin(one.name, _overrides(one), directory, *options) for one in wanted}
    try:
        return {name: read_profile(_ended(*begun)) for name, begun in running.items()}
    finally:
        for _, process in running.values():
            process.kill()


def _overrides(waits: Waits) -> list[str]:
    kwargs: dict[str, Any] = {**msgspec.to_builtins(waits), "seed": 1}
    return [f"environment.waits.kwargs.{name}={json.dumps(value)}" for name, value in kwargs.items()]


def _begin(
    name: str, overrides: Sequence[str], directory: Path, *options: str
) -> tuple[Path, subprocess.Popen[bytes]]:
    """Begin an audit; return where its profile will be."""
    directory.mkdir(parents=True, exist_ok=True)
    config, out = directory / f"{name}.toml", directory / f"{name}.json"
    lines = [f'extends = "{BASE}"', *(" = ".join(one.split("=", 1)) for one in overrides)]
    config.write_text("\n".join(lines) + "\n")
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "forebay", "audit", str(config), *options, "--out", str(out)]
    return out, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _ended(out: Path, process: subprocess.Popen[bytes]) -> Path:
    with process:
        try:
            _, errors = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise PeerFailedError(f"the audit for {out.name} did not end within {_TIMEOUT_S:g} s") from None
    if process.returncode:
        raise PeerFailedError(f"the audit that writes {out.name} failed: {errors.decode()[-400:]}")
    return out
