"""`forebay eval`: held-out tasks, once or whenever a run has moved on far enough."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from forebay.actors.evaluation import EvaluationReport
from forebay.actors.scores import Comparison, compare
from forebay.cli.completing import complete_run
from forebay.cli.evaluating import Posed, evaluate_run, follow_run
from forebay.cli.preflight import held_out_tasks
from forebay.cli.runs import Run, join_run
from forebay.cli.scoring import as_json, describe, describe_comparison
from forebay.cli.versions import checkpoint, serving
from forebay.errors import ConfigError, PeerFailedError
from forebay.telemetry.logs import setup_logging


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [OTHER]",
            help="Run directory, or two to compare on the same tasks.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    generator: Annotated[
        list[str] | None, typer.Option(help="Address of a generator; may be given several times.")
    ] = None,
    num_tasks: Annotated[
        int | None,
        typer.Option("--num-tasks", "--tasks", min=1, help="Held-out tasks, instead of learner.eval_tasks."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling, instead of run.seed.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best evaluated checkpoint instead of the newest weights.")
    ] = False,
    follow: Annotated[
        bool, typer.Option(help="Evaluate every learner.eval_every batches until stopped.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every reward.")] = False,
) -> None:
    """Evaluate a run's newest weights on held-out tasks; without a generator, one is started.

    Rewards of 0 and 1 get Wilson's interval and, with several samples, pass@k; others get a bootstrap over
    tasks. Two runs are compared task by task. With --best, nothing is added to eval.jsonl: the checkpoint is
    judged by tasks and samples that need not be those it was chosen by.

    Examples:
        forebay eval runs/calculator
        forebay eval runs/calculator --tasks 200 --samples 4
        forebay eval runs/calculator --best
        forebay eval runs/calculator runs/calculator-sync --json
    """
    setup_logging("evaluator")
    _refuse_contradictions(runs, generator, best=best, follow=follow)
    joined = [join_run(path) for path in runs]
    config = joined[0].config
    tasks = held_out_tasks(config, num_tasks or config.learner.eval_tasks)
    if num_tasks is not None and len(tasks) < num_tasks:
        typer.echo(f"only {len(tasks)} tasks are held out: environment.NAME.holdout_fraction", err=True)
    posed = Posed(tasks, samples, config.run.seed if seed is None else seed)
    if follow:
        follow_run(joined[0], generator, posed)
        return
    evaluate_one = _evaluate_best if best else functools.partial(_evaluate, given=generator)
    reports = {str(path): evaluate_one(run, posed) for path, run in zip(runs, joined, strict=True)}
    comparison = compare(*(report.rewards for report in reports.values())) if len(reports) == 2 else None
    typer.echo(as_json(reports, comparison) if json else "\n".join(_lines(reports, comparison)))


def _lines(reports: Mapping[str, EvaluationReport], comparison: Comparison | None) -> Iterator[str]:
    for name, report in reports.items():
        yield describe(report) if len(reports) == 1 else f"{name}: {describe(report)}"
    if comparison is not None:
        first, second = reports
        yield describe_comparison(first, second, comparison)


def _evaluate_best(run: Run, posed: Posed) -> EvaluationReport:
    with serving(run.config, run.model_directory, lambda _: checkpoint(run)) as copy:
        return _evaluate(copy, posed, None)


def _evaluate(run: Run, posed: Posed, given: list[str] | None) -> EvaluationReport:
    report = evaluate_run(run, given, posed)
    if report.score.reward is None:
        first = max(report.causes, key=lambda cause: report.causes[cause], default="no cause is known")
        environment = run.config.environment.get(first.partition(": ")[0])
        entrypoint = environment.entrypoint if environment else "MODULE:CLASS"
        raise PeerFailedError(
            f"none of {report.score.num_episodes} episodes could be scored: {first}",
            remedy=f"Try the environment alone: forebay env check {entrypoint}",
        )
    return report


def _refuse_contradictions(
    runs: list[Path], generator: list[str] | None, *, best: bool, follow: bool
) -> None:
    if len(runs) > 2 or len({path.resolve() for path in runs}) < len(runs):
        raise ConfigError("eval takes one run, or two different ones", got=" ".join(map(str, runs)))
    if follow and len(runs) > 1:
        raise ConfigError("--follow takes one run", got=len(runs))
    if best and (generator or follow):
        other = "--follow" if follow else "--generator"
        raise ConfigError(
            f"--best and {other} name different weights",
            remedy=f"Leave one out: --best starts a generator of its own, {other} asks for newest weights.",
        )
