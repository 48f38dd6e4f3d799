"""A generator to ask: the one that is named, the run's own if it is up, or one that is started for it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.cli.roles import base_address, free_port
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.errors import ConfigError, GenerationError, PeerFailedError
from forebay.generation.client import HttpGenerator
from forebay.generation.protocol import Generator, GeneratorInfo
from forebay.launch import ProcessSpec
from forebay.launch.child import Child
from forebay.weights.reader import WeightReader

_POLL_S = 1.0
_STOP_GRACE_S = 10.0
logger = logging.getLogger(__name__)

Watch = Callable[[], None]
"""Raises if there is no point in waiting any longer."""


@contextmanager
def generator_of(run: Run, given: list[str] | None) -> Iterator[tuple[list[str], Watch]]:
    """Yield where to generate; a generator that is started for it ends with it.

    Raises:
        ConfigError: The run has published no weights that a generator could load.
    """
    settings = run.config.generator
    if given:
        yield given, _no_watch
        return
    if settings.port and _listens(settings.host, settings.port):
        yield [base_address(settings.host, settings.port)], _no_watch
        return
    if WeightReader(run.layout.weights).latest() is None:
        raise ConfigError(f"{run.layout.path} has no weights yet", remedy="Train it first.")
    port = free_port()
    argv = (sys.executable, "-m", "forebay", "generate", str(run.layout.path), "--port", str(port))
    child = Child(ProcessSpec(name="eval-generator", argv=argv), run.layout.logs / "eval-generator.log")
    logger.info("starting a generator, see %s", child.log_path)
    child.start(SystemClock().monotonic_s())

    def watch() -> None:
        code = child.process.poll() if child.process else None
        if code is not None:
            raise PeerFailedError(child.cause(code), remedy=f"See {child.log_path}.")

    try:
        yield [base_address(settings.host, port)], watch
    finally:
        child.stop(_STOP_GRACE_S)


async def wait_for_generator(generator: Generator, watch: Watch, patience_s: float) -> GeneratorInfo:
    """Wait until a generator answers that may just have been started.

    Raises:
        PeerFailedError: It ended, or did not answer for `patience_s`.
    """
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + patience_s
    while True:
        try:
            info = await generator.info()
            if isinstance(generator, HttpGenerator):
                # It answers before it has compiled, and the time for an episode would pass meanwhile.
                await generator.wait_ready(deadline_s - clock.monotonic_s())
            return info
        except GenerationError as error:
            watch()
            if clock.monotonic_s() >= deadline_s:
                raise PeerFailedError(
                    f"no generator answers: {error}",
                    limit=f"actors.peer_patience_s={patience_s}",
                    remedy="Give --generator the address of one that runs, or none to have one started.",
                ) from error
        await asyncio.sleep(_POLL_S)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _POLL_S):
            return True
    except OSError:
        return False


def _no_watch() -> None:
    """Somebody else watches over the generator."""
