"""`forebay store export`: stored trajectories as rows of a file that other programs read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from forebay.cli.roles import RunPath
from forebay.cli.runs import join_run
from forebay.cli.store_selection import (
    EnvironmentOption,
    LimitOption,
    Selection,
    StateOption,
    StepOption,
    VersionOption,
    steps_of,
)
from forebay.errors import StoreError
from forebay.store import StoreView
from forebay.store.batches import decode_group_frames
from forebay.store.row_files import row_file
from forebay.store.rows import SCHEMA_VERSION, to_row


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option("--to", help="File to write: NAME.jsonl or NAME.parquet.")],
    state: StateOption = None,
    environment: EnvironmentOption = None,
    step: StepOption = None,
    version: VersionOption = None,
    limit: LimitOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Write every stored trajectory as a row: tokens, logprobs, versions, rewards and times.

    The run may be going on, and nothing is changed. The file appears when all of it is written. What cannot
    be read back is left out and counted. Parquet needs pyarrow: pip install 'forebay[parquet]'.

    Examples:
        forebay store export runs/calculator --to trajectories.jsonl
        forebay store export runs/calculator --to recorded.parquet --state recorded --environment calculator
    """
    wanted = Selection(state, environment, step, version, limit).check()
    joined = join_run(run)
    skipped: list[str] = []
    count = 0
    with joined.view_store() as view, row_file(to, force=force) as file:
        for row in rows_of(view, wanted, skipped):
            file.write(row)
            count += 1
    if as_json:
        told = {"file": str(to), "trajectories": count, "skipped": skipped, "schema_version": SCHEMA_VERSION}
        typer.echo(msgspec.json.encode(told).decode())
        return
    typer.echo(f"{count} trajectories in {to}")
    for problem in skipped:
        typer.echo(f"left out: {problem}", err=True)


def rows_of(view: StoreView, wanted: Selection, skipped: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the trajectories of the groups that are meant, group by group.

    Args:
        view: The store.
        wanted: Which groups.
        skipped: Where it is noted what cannot be read back, and why.
    """
    steps = steps_of(view)
    for group in wanted.groups(view, steps):
        if not group.num_arrived:
            continue
        try:
            raw = view.read_raw(group.group_id)
        except StoreError:  # forgotten since it was listed
            continue
        taken, broken = decode_group_frames(raw)
        if broken and view.find_group(group.group_id) is not None:
            skipped += [f"member {member} of {group.group_id}: {error}" for member, error in broken.items()]
        step = steps.get(group.group_id)
        for trajectory in taken.trajectories:
            yield to_row(trajectory, raw.spec.task, group.state, step)
