"""The actor process: a pool with its signals, its watchdog and its clean-up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from forebay.actors.board import DirectoryBoard
from forebay.actors.control import BatchDemand
from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.actors.store_access import ActorStore
from forebay.actors.watchdog import LoopWatchdog
from forebay.chat import Chat
from forebay.clock import Clock, SystemClock
from forebay.envs.registry import EnvironmentKind
from forebay.generation.protocol import Generator
from forebay.telemetry.trace import OFF, Tracer

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_actor(
    *,
    store: ActorStore,
    generator: Generator,
    chat: Chat,
    environments: Mapping[str, EnvironmentKind],
    settings: ActorSettings,
    run_seed: int,
    name: str,
    clock: Clock | None = None,
    max_kv_staleness: int | None = None,
    tracer: Tracer = OFF,
    batches: BatchDemand | None = None,
    board_path: Path | None = None,
    report: Callable[[ActorPool], None] = lambda _: None,
    report_s: float = 5.0,
) -> dict[str, int]:
    """Run a pool until SIGTERM or SIGINT, which drain it; a second one stops it at once.

    An event loop that stays blocked for `blocked_limit_s` ends the process with exit code 4 and the stack
    of the culprit: its leases would expire unnoticed. Store and generator stay the caller's to close.

    Args:
        store: Where work comes from and results go.
        generator: What continues prompts.
        chat: Tokenizer and template.
        environments: Environments by name; closed at the end.
        settings: Sizes and deadlines.
        run_seed: Seed of the run.
        name: Name of this actor; the process id is added, so that no two starts share it.
        clock: Wall clock, comparable with the store's; the system's by default.
        max_kv_staleness: KV older than this is computed again in a follow-up turn; None to keep it.
        tracer: Records what episodes do; stays the caller's to close.
        batches: What the learner takes at a time; needed where the number of episodes follows it.
        board_path: Directory where the actor processes of the run see one another; None for one alone.
        report: Called now and then, and once at the end, with the pool; reads `stats()`, drains `episodes`.
        report_s: Time between two calls.

    Returns:
        The pool's counters.

    Raises:
        ConfigError: Tokenizer and model do not fit.
        PeerFailedError: Store or generator failed for too long.
    """
    name = f"{name}-{os.getpid()}"
    pool = ActorPool(
        store=store,
        generator=generator,
        chat=chat,
        environments=environments,
        settings=settings,
        run_seed=run_seed,
        name=name,
        clock=clock or SystemClock(),
        max_kv_staleness=max_kv_staleness,
        tracer=tracer,
        batches=batches,
        board=DirectoryBoard(board_path, name) if board_path is not None else None,
    )
    return await _run_pool(pool, environments.values(), settings, report, report_s)


async def _run_pool(
    pool: ActorPool,
    kinds: Collection[EnvironmentKind],
    settings: ActorSettings,
    report: Callable[[ActorPool], None],
    report_s: float,
) -> dict[str, int]:
    """Run a pool with its environments open, under a watchdog and the signals that drain it."""
    loop = asyncio.get_running_loop()
    watchdog = LoopWatchdog(
        loop,
        settings.blocked_s,
        settings.blocked_limit_s,
        on_blocked=lambda blockage: pool.counters.update([f"blocked.{blockage.environment}"]),
    )
    with _drained_by_signals(loop, pool):
        watchdog.start()
        reporting = asyncio.create_task(_report(pool, report, report_s), name="report")
        try:
            for kind in kinds:
                await kind.open()
            await pool.run()
            _try_report(pool, report)
            return pool.stats()
        finally:
            reporting.cancel()
            watchdog.stop()
            for kind in kinds:
                await kind.close()


@contextmanager
def _drained_by_signals(loop: asyncio.AbstractEventLoop, pool: ActorPool) -> Iterator[None]:
    for number in _SIGNALS:
        loop.add_signal_handler(number, pool.drain)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _report(pool: ActorPool, report: Callable[[ActorPool], None], period_s: float) -> None:
    while True:
        await asyncio.sleep(period_s)
        _try_report(pool, report)


def _try_report(pool: ActorPool, report: Callable[[ActorPool], None]) -> None:
    try:
        report(pool)
    except OSError as error:
        # A full disk under the reports is no reason to throw episodes away.
        pool.counters["report_errors"] += 1
        _log.warning("cannot report: %s", error)
