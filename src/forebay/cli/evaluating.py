"""The body of `forebay eval`: a generator to ask, held-out episodes, and `eval.jsonl`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import EpisodeRunner
from forebay.actors.evaluation import EvaluationReport, evaluate
from forebay.cli.acting import client_settings, load_environments
from forebay.cli.roles import base_address, free_port
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind
from forebay.errors import ConfigError, GenerationError, PeerFailedError
from forebay.generation.pool import connect
from forebay.generation.protocol import Generator, GeneratorInfo
from forebay.launch import ProcessSpec
from forebay.launch.child import Child
from forebay.telemetry.metrics import MetricsWriter
from forebay.trajectory import Task
from forebay.weights.reader import WeightReader

_POLL_S = 1.0
_STOP_GRACE_S = 10.0
logger = logging.getLogger(__name__)

Watch = Callable[[], None]
"""Raises if there is no point in waiting any longer."""


def evaluate_run(run: Run, given: list[str] | None, tasks: tuple[Task, ...], *, follow: bool) -> None:
    """Evaluate once and print the result, or again and again into `eval.jsonl`.

    Args:
        run: Whose weights are evaluated.
        given: Addresses of generators; if there is none, the configured one, or else one of its own.
        tasks: What is posed.
        follow: Evaluate every `learner.eval_every` batches until stopped.

    Raises:
        ConfigError: The run has published no weights.
        PeerFailedError: No generator could be reached or started.
    """
    if follow and not run.config.learner.eval_every:
        raise ConfigError(
            "nothing to follow", got="learner.eval_every=0", remedy="Evaluate once, without --follow."
        )
    with generator_of(run, given) as (addresses, watch):
        asyncio.run(_evaluate(run, addresses, watch, tasks, follow))


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


def describe(report: EvaluationReport) -> str:
    """Return an evaluation as one line."""
    if report.reward is None:
        return f"version {report.version.version}: none of {report.num_tasks} episodes could be scored"
    failed = f", {report.num_failed} failed" if report.num_failed else ""
    return (
        f"version {report.version.version}: reward {report.reward:.3f} "
        f"[{report.reward_low:.3f}, {report.reward_high:.3f}] on {report.num_tasks} held-out tasks{failed}, "
        f"{report.turns:.1f} turns and {report.tokens:.0f} tokens an episode"
    )


async def _evaluate(
    run: Run, addresses: list[str], watch: Watch, tasks: tuple[Task, ...], follow: bool
) -> None:
    environments = load_environments(run)
    generator = connect(addresses, client_settings(run))
    writer = MetricsWriter(run.layout.path / "eval.jsonl", SystemClock())
    try:
        info = await _wait_for(generator, watch, run.config.actors.peer_patience_s)
        runner = _runner(run, generator, info, environments)
        if follow:
            await _follow(run, runner, tasks, writer)
        else:
            typer.echo(describe(await _once(run, runner, tasks, writer)))
    finally:
        await generator.close()
        for kind in environments.values():
            await kind.close()
        writer.close()


async def _wait_for(generator: Generator, watch: Watch, patience_s: float) -> GeneratorInfo:
    """Wait until a generator answers that may just have been started.

    Raises:
        PeerFailedError: It ended, or did not answer for `patience_s`.
    """
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + patience_s
    while True:
        try:
            return await generator.info()
        except GenerationError as error:
            watch()
            if clock.monotonic_s() >= deadline_s:
                raise PeerFailedError(
                    f"no generator answers: {error}",
                    limit=f"actors.peer_patience_s={patience_s}",
                    remedy="Give --generator the address of one that runs, or none to have one started.",
                ) from error
        await asyncio.sleep(_POLL_S)


def _runner(
    run: Run, generator: Generator, info: GeneratorInfo, environments: dict[str, EnvironmentKind]
) -> EpisodeRunner:
    return EpisodeRunner(
        generator=generator,
        info=info,
        chat=run.chat,
        environments=environments,
        sampling=run.config.actors.sampling,
        max_turn_tokens=run.config.actors.max_turn_tokens,
        clock=SystemClock(),
        boundary=FaultBoundary(run.config.actors.cancel_grace_s),
    )


async def _follow(run: Run, runner: EpisodeRunner, tasks: tuple[Task, ...], writer: MetricsWriter) -> None:
    """Evaluate the first weights, then each time they are `eval_every` batches newer."""
    every = run.config.learner.eval_every * run.config.updates_per_batch
    due = 0
    while True:
        try:
            version = (await runner.generator.info()).version.version
            if version >= due:
                due = version - version % every + every
                await _once(run, runner, tasks, writer)
        except GenerationError:
            pass  # the supervisor brings the generator back; the next look finds it
        await asyncio.sleep(_POLL_S)


async def _once(
    run: Run, runner: EpisodeRunner, tasks: tuple[Task, ...], writer: MetricsWriter
) -> EvaluationReport:
    version = (await runner.generator.info()).version
    report = await evaluate(
        runner,
        tasks,
        run_id=run.run_id,
        seed=run.config.run.seed,
        min_version=version,
        concurrency=run.config.actors.episodes_per_process,
    )
    writer.write(
        version.version,
        {
            "incarnation": version.incarnation,
            "reward": report.reward,
            "reward_low": report.reward_low,
            "reward_high": report.reward_high,
            "num_tasks": report.num_tasks,
            "num_failed": report.num_failed,
            "turns": report.turns,
            "tokens": report.tokens,
        },
    )
    return report


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _POLL_S):
            return True
    except OSError:
        return False


def _no_watch() -> None:
    """Somebody else watches over the generator."""
