"""`forebay trace`: what every process of a run did when, as one timeline for Perfetto."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, cast

import typer

from forebay.cli.roles import RunPath
from forebay.errors import ConfigError
from forebay.learner.run_directory import RunLayout, read_run_manifest
from forebay.telemetry.chrome import write_timeline
from forebay.telemetry.files import require_place


def trace(
    run: RunPath,
    to: Annotated[
        Path | None,
        typer.Option(
            help="File to write, compressed if its name ends in .gz; by default trace.json.gz in the run.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write what every process of a run did when, as one timeline for Perfetto.

    Example:
        forebay trace runs/demo/decoupled --to trace.json.gz
    """
    read_run_manifest(run)
    target = to or run / "trace.json.gz"
    require_place(target)
    with _replacing(target) as file:
        counts = write_timeline(RunLayout(run).trace, file.write)
        if not counts.processes:
            raise ConfigError(
                f"{run} has no trace",
                remedy="Start a run with telemetry.trace=true; processes write theirs as they go on.",
            )
    found = f"{counts.slices} slices of {counts.processes} processes, {counts.paths} trajectories followed"
    typer.echo(f"{target}: {found}")
    typer.echo("open it in Perfetto: https://ui.perfetto.dev")


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name only once it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".partial-{os.getpid()}-{target.name}")
    try:
        with (
            gzip.open(partial, "wb", compresslevel=6)
            if target.suffix == ".gz"
            else partial.open("wb") as file
        ):
            yield cast("IO[bytes]", file)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
