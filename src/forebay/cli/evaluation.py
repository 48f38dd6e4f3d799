"""`forebay eval`: held-out tasks, once or whenever a run has moved on far enough."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.preflight import held_out_tasks
from forebay.cli.roles import RunPath
from forebay.cli.runs import join_run
from forebay.telemetry.logs import setup_logging


def evaluate(
    run: RunPath,
    generator: Annotated[
        list[str] | None, typer.Option(help="Address of a generator; may be given several times.")
    ] = None,
    num_tasks: Annotated[
        int | None, typer.Option(min=1, help="Held-out tasks, instead of learner.eval_tasks.")
    ] = None,
    follow: Annotated[
        bool, typer.Option(help="Evaluate every learner.eval_every batches until stopped.")
    ] = False,
) -> None:
    """Evaluate a run's newest weights on held-out tasks; without a generator, one is started."""
    from forebay.cli.evaluating import evaluate_run

    joined = join_run(run)
    setup_logging("evaluator")
    tasks = held_out_tasks(joined.config, num_tasks or joined.config.learner.eval_tasks)
    evaluate_run(joined, generator, tasks, follow=follow)
