"""`forebay store`: look into the store of a run, and check its accounts."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath, configure_jax
from forebay.cli.runs import join_run
from forebay.cli.store_summary import format_bytes, summarize_store
from forebay.errors import StoreError
from forebay.launch import divide_cpus
from forebay.staleness import OutstandingGroup
from forebay.store import count_lost
from forebay.telemetry.logs import setup_logging

app = typer.Typer(help="Look into the store of a run.", no_args_is_help=True)


@app.command()
def show(
    run: RunPath,
    groups: Annotated[int, typer.Option(min=0, help="Also list this many groups, oldest first.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print depth, bytes, ages and counters; the run may be going on, and nothing is changed.

    Examples:
        forebay store show runs/calculator
        forebay store show runs/calculator --groups 10
        forebay store show runs/calculator --json
    """
    joined = join_run(run)
    with joined.view_store() as store:
        stats, every = store.stats(), list(store.scan())
    listed = list(islice(every, groups))
    if as_json:
        tree: dict[str, Any] = msgspec.to_builtins(stats) | {"lost": count_lost(stats)}
        tree["groups"] = msgspec.to_builtins(listed)
        typer.echo(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())
        return
    typer.echo(summarize_store(stats, every, joined.store_settings.path))
    for group in listed:
        typer.echo(_describe(group))


@app.command()
def verify(run: RunPath) -> None:
    """Recount every record; exit with 4 if a trajectory was lost or an account is wrong.

    Example:
        forebay store verify runs/calculator
    """
    with join_run(run).view_store() as store:
        problems = store.audit()
        lost = count_lost(store.stats())
    if problems or lost:
        raise StoreError(
            f"the store's accounts are wrong: {'; '.join(problems) or 'trajectories lost'}", got=lost
        )
    typer.echo("accounts are right: 0 trajectories lost")


@app.command()
def replay(run: RunPath) -> None:
    """Train the whole journal again from the stored frames; exit with 4 if other weights come out.

    The run must have been started with learner.keep_consumed=true.

    Example:
        forebay store replay runs/calculator
    """
    joined = join_run(run)
    require_learner_packages()
    setup_logging("replay")
    launch = joined.config.launch
    # As many cores as the learner had: XLA divides its work by them.
    os.sched_setaffinity(
        0, divide_cpus(sorted(os.sched_getaffinity(0)), launch.learner_cpus, launch.other_cpus)[0]
    )
    configure_jax()
    from forebay.cli.replaying import replay_run

    done = replay_run(joined)
    last = max(done.compared, key=lambda version: (version.version, version.incarnation))
    typer.echo(
        f"{done.batches} batches replayed up to version {done.version}: bit for bit equal to "
        f"{len(done.compared)} published versions, the last one {tuple(last)}"
    )


def _describe(group: OutstandingGroup) -> str:
    state = "settled" if group.settled else "open"
    start = "not begun" if group.start is None else f"version {group.start.version}"
    size = format_bytes(group.num_bytes)
    return f"{group.group_id:<24} {state:<8} {group.environment:<16} {start:<14} {size}"
