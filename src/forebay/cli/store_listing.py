"""`forebay store ls`: the groups of a store, one a line."""

from __future__ import annotations

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
from forebay.cli.store_summary import format_age, format_bytes
from forebay.clock import SystemClock
from forebay.store import StoredGroup

_COLUMNS = "{:<24} {:<9} {:<16} {:>8} {:>7} {:>7} {:>8} {:>6} {:>12} {:>9}"
_HEADER = _COLUMNS.format(
    "group", "state", "environment", "arrived", "leased", "failed", "version", "step", "size", "age"
)


def ls(
    run: RunPath,
    state: StateOption = None,
    environment: EnvironmentOption = None,
    step: StepOption = None,
    version: VersionOption = None,
    limit: LimitOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List groups in order of dispatch, as a stream; the run may be going on, and nothing is changed.

    Of each: members that arrived, of all; leased and failed ones; the version of its oldest token; the step
    that trained it; its bytes, stored or reserved; and how long ago it was dispatched.

    Examples:
        forebay store ls runs/calculator --limit 20
        forebay store ls runs/calculator --state open --environment calculator
        forebay store ls runs/calculator --step 12 --json
    """
    wanted = Selection(state, environment, step, version, limit).check()
    joined = join_run(run)
    with joined.view_store() as view:
        steps, now_s = steps_of(view), SystemClock().wall_s()
        if not as_json:
            typer.echo(_HEADER)
        for group in wanted.groups(view, steps):
            of_group = steps.get(group.group_id)
            if as_json:
                typer.echo(msgspec.json.encode(group_tree(group, of_group)).decode())
            else:
                typer.echo(_line(group, of_group, now_s))


def group_tree(group: StoredGroup, step: int | None) -> dict[str, Any]:
    """Return a group for scripts.

    Args:
        group: What is stored.
        step: The version that its batch made; None if it has not been trained.
    """
    return {**msgspec.to_builtins(group), "step": step}


def _line(group: StoredGroup, step: int | None, now_s: float) -> str:
    states = [member.state for member in group.members]
    return _COLUMNS.format(
        group.group_id,
        group.state,
        group.environment,
        f"{group.num_arrived}/{len(states)}",
        states.count("leased"),
        states.count("failed") + states.count("missing"),
        "-" if group.start is None else group.start.version,
        "-" if step is None else step,
        format_bytes(group.num_bytes),
        format_age(max(0.0, now_s - group.dispatched_s)),
    )
