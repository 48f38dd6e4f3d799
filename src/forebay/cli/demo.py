"""`forebay demo`: the same agent trained synchronously, then decoupled, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.comparison import compare, describe
from forebay.report import find_runs, load_run, verdict_of


def demo(
    directory: Annotated[Path, typer.Option(help="Where the two runs go; made anew.")] = Path("runs/demo"),
    seconds: Annotated[float, typer.Option(help="Time that each of the two trains.", min=5.0)] = 90.0,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value items.", show_default=False)
    ] = None,
) -> None:
    """Train a small agent with slow tools, first synchronously, then decoupled, and compare.

    Examples:
        forebay demo
        forebay demo --seconds 30 --directory runs/short
    """
    summary = compare(directory, seconds, seconds, tuple(overrides or ()))
    typer.echo(describe(summary, directory))
    for run in find_runs(directory):
        if life := verdict_of(load_run(run)).life:
            typer.echo(f"{run.name}: {life}")
    typer.echo(f"next: forebay report {directory}")
