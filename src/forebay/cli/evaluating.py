"""The body of `forebay eval`: held-out episodes of a run's newest weights, and `eval.jsonl`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import typer

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import EpisodeRunner
from forebay.actors.evaluation import EvaluationReport, evaluate
from forebay.cli.acting import client_settings, load_environments
from forebay.cli.asking import Watch, generator_of, wait_for_generator
from forebay.cli.runs import Run
from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, GenerationError
from forebay.generation.pool import connect
from forebay.telemetry.metrics import MetricsWriter
from forebay.trajectory import Task

_POLL_S = 1.0
_SAY_EVERY_S = 10.0


class Posed(NamedTuple):
    """What an evaluation asks.

    Attributes:
        tasks: Held-out tasks.
        num_samples: Episodes of each.
        seed: Seed of the sampling.
    """

    tasks: tuple[Task, ...]
    num_samples: int
    seed: int


def evaluate_run(run: Run, given: list[str] | None, posed: Posed) -> EvaluationReport:
    """Evaluate a run's newest weights once.

    Args:
        run: Whose weights are evaluated.
        given: Addresses of generators; if there is none, the configured one, or else one of its own.
        posed: What is asked.

    Raises:
        ConfigError: The run has published no weights.
        PeerFailedError: No generator could be reached or started.
    """
    with generator_of(run, given) as (addresses, watch):
        return asyncio.run(_evaluate(run, addresses, watch, posed))


def follow_run(run: Run, given: list[str] | None, posed: Posed) -> None:
    """Evaluate every `learner.eval_every` batches until stopped; results go to `eval.jsonl`.

    Args:
        run: Whose weights are evaluated.
        given: Addresses of generators; see `evaluate_run`.
        posed: What is asked, each time.

    Raises:
        ConfigError: The run is never to be evaluated, or has published no weights.
        PeerFailedError: No generator could be reached or started.
    """
    if not run.config.learner.eval_every:
        raise ConfigError(
            "nothing to follow", got="learner.eval_every=0", remedy="Evaluate once, without --follow."
        )
    with generator_of(run, given) as (addresses, watch):
        asyncio.run(_follow(run, addresses, watch, posed))


class Evaluator:
    """Asks the same tasks again and again, and appends what comes out to `eval.jsonl`.

    Args:
        run: Whose weights are evaluated.
        runner: Runs episodes.
        posed: What is asked.
        say: Told how far an evaluation has come, now and then.
        clock: Source of time.
    """

    def __init__(
        self, run: Run, runner: EpisodeRunner, posed: Posed, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._run, self._posed, self._say, self._clock = run, posed, say, clock
        self.runner = runner
        self._said_s = clock.monotonic_s()

    async def once(self) -> EvaluationReport:
        """Evaluate the weights that the generator serves now."""
        version = (await self.runner.generator.info()).version
        report = await evaluate(
            self.runner,
            self._posed.tasks,
            run_id=self._run.run_id,
            seed=self._posed.seed,
            min_version=version,
            concurrency=self._run.config.actors.evaluation_episodes,
            num_samples=self._posed.num_samples,
            on_ended=self._ended,
        )
        score = report.score
        with MetricsWriter(self._run.layout.path / "eval.jsonl", self._clock) as writer:
            writer.write(
                version.version,
                {
                    "incarnation": version.incarnation,
                    "reward": score.reward,
                    "reward_low": score.reward_low,
                    "reward_high": score.reward_high,
                    "method": score.method,
                    "num_tasks": score.num_tasks,
                    "num_episodes": score.num_episodes,
                    "num_failed": score.num_failed,
                    "turns": score.turns,
                    "tokens": score.tokens,
                }
                | {f"pass_at_{k}": share for k, share in score.pass_at.items()}
                | {f"reward.{name}": part.reward for name, part in report.environments.items()},
            )
        return report

    def _ended(self, num_ended: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            self._say(
                f"{num_ended} of {len(self._posed.tasks) * self._posed.num_samples} episodes have ended"
            )


async def _evaluate(run: Run, addresses: list[str], watch: Watch, posed: Posed) -> EvaluationReport:
    async with _evaluator(run, addresses, watch, posed, _say) as evaluator:
        return await evaluator.once()


async def _follow(run: Run, addresses: list[str], watch: Watch, posed: Posed) -> None:
    """Evaluate the first weights, then each time they are `eval_every` batches newer."""
    every = run.config.learner.eval_every * run.config.updates_per_batch
    due = 0
    async with _evaluator(run, addresses, watch, posed, lambda line: None) as evaluator:
        while True:
            try:
                version = (await evaluator.runner.generator.info()).version.version
                if version >= due:
                    due = version - version % every + every
                    await evaluator.once()
            except GenerationError:
                pass  # the supervisor brings the generator back; the next look finds it
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _evaluator(
    run: Run, addresses: list[str], watch: Watch, posed: Posed, say: Callable[[str], None]
) -> AsyncIterator[Evaluator]:
    """Open environments and a generator for as long as they are asked."""
    environments = load_environments(run)
    generator = connect(addresses, client_settings(run))
    actors = run.config.actors
    try:
        for kind in environments.values():
            await kind.open()
        runner = EpisodeRunner(
            generator=generator,
            info=await wait_for_generator(generator, watch, actors.peer_patience_s),
            chat=run.chat,
            environments=environments,
            sampling=actors.sampling,
            max_turn_tokens=actors.max_turn_tokens,
            clock=SystemClock(),
            boundary=FaultBoundary(actors.cancel_grace_s),
        )
        yield Evaluator(run, runner, posed, say, SystemClock())
        await runner.close()
    finally:
        await generator.close()
        for kind in environments.values():
            await kind.close()


def _say(line: str) -> None:
    typer.echo(line, err=True)
