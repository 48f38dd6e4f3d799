"""`forebay report`: one self-contained page about a run, or about two of them side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.errors import ConfigError
from forebay.report import find_runs, load_run, render_page, verdict_of
from forebay.telemetry.files import require_place, write_atomically

_MOST_RUNS = 2


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run directory, that of a comparison, or two run directories.", show_default=False
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(help="The file to write; by default report.html in the first directory.")
    ] = None,
) -> None:
    """Write a page about a run, or two side by side: verdict, time, learning, data, sampled trajectories.

    Examples:
        forebay report runs/demo
        forebay report runs/before runs/after --to comparison.html
    """
    paths = [path for directory in runs for path in find_runs(directory)]
    if len(paths) > _MOST_RUNS:
        raise ConfigError(
            "a report compares at most two runs",
            got=", ".join(map(str, paths)),
            remedy="Name one run, or two.",
        )
    target = to or runs[0] / "report.html"
    require_place(target)
    names = _names(paths)
    records = [load_run(path, name) for path, name in zip(paths, names, strict=True)]
    title = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}"
    write_atomically(target, render_page(records, title).encode("utf-8", "replace"))
    for record in records:
        verdict = verdict_of(record)
        typer.echo(f"{record.name}: {verdict.sentence}")
        if verdict.life:
            typer.echo(f"{record.name}: {verdict.life}")
    typer.echo(f"{target} has the whole report; it needs no network")


def _names(paths: list[Path]) -> list[str]:
    """Return what the page calls the runs: their directories' names, or the paths where these are equal."""
    names = [path.absolute().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
