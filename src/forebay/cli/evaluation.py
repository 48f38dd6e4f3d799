"""`forebay eval`: held-out tasks, once or whenever a run has moved on far enough."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import EpisodeRunner
from forebay.actors.evaluation import EvaluationReport
from forebay.actors.evaluation import evaluate as run_evaluation
from forebay.cli.acting import load_environments
from forebay.cli.roles import RunPath, generator_addresses
from forebay.cli.runs import Run, join_run
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind, load_task_sets
from forebay.errors import ConfigError, GenerationError
from forebay.generation.pool import connect
from forebay.generation.protocol import Generator
from forebay.telemetry.logs import setup_logging
from forebay.telemetry.metrics import MetricsWriter
from forebay.trajectory import Task

_POLL_S = 1.0


def evaluate(
    run: RunPath,
    generator: Annotated[
        list[str] | None, typer.Option(help="Address of a generator; may be given several times.")
    ] = None,
    num_tasks: Annotated[int | None, typer.Option(help="Held-out tasks, instead of learner.eval_tasks.")] = None,
    follow: Annotated[bool, typer.Option(help="Evaluate every learner.eval_every batches until stopped.")] = False,
) -> None:
    """Evaluate a run's newest weights on tasks that are never trained; a generator must be running."""
    joined = join_run(run)
    setup_logging("evaluator")
    tasks = held_out_tasks(joined, num_tasks or joined.config.learner.eval_tasks)
    asyncio.run(_evaluate(joined, generator_addresses(joined, generator), tasks, follow))


def held_out_tasks(run: Run, count: int) -> tuple[Task, ...]:
    """Return held-out tasks, the same ones every time, environments taking turns.

    Raises:
        ConfigError: Nothing is held out.
    """
    sets = [load_task_sets(settings).held_out for settings in run.config.environment.values()]
    longest = max(map(len, sets))
    tasks = tuple(tasks[index] for index in range(longest) for tasks in sets if index < len(tasks))[:count]
    if not tasks:
        raise ConfigError("no task is held out", remedy="Raise environment.NAME.holdout_fraction.")
    return tasks


async def _evaluate(run: Run, addresses: list[str], tasks: tuple[Task, ...], follow: bool) -> None:
    clock = SystemClock()
    environments = load_environments(run)
    generator = connect(addresses)
    writer = MetricsWriter(run.layout.path / "eval.jsonl", clock)
    try:
        runner = await _runner(run, generator, environments)
        if follow:
            await _follow(run, runner, tasks, writer)
        else:
            typer.echo(describe(await _once(run, runner, tasks, writer)))
    finally:
        await generator.close()
        for kind in environments.values():
            await kind.close()
        writer.close()


async def _runner(
    run: Run, generator: Generator, environments: dict[str, EnvironmentKind]
) -> EpisodeRunner:
    return EpisodeRunner(
        generator=generator,
        info=await generator.info(),
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
    report = await run_evaluation(
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
