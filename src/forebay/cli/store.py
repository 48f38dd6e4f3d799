"""`forebay store`: look into the store of a run, and check its accounts."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath, configure_jax
from forebay.cli.runs import join_run
from forebay.errors import StoreError
from forebay.launch import divide_cpus
from forebay.store.accounting import count_lost
from forebay.telemetry.logs import setup_logging

app = typer.Typer(help="Look into the store of a run.", no_args_is_help=True)


@app.command()
def show(
    run: RunPath,
    groups: Annotated[int, typer.Option(help="Also list this many groups, oldest first.")] = 0,
) -> None:
    """Print depth, bytes, ages and counters; the run may be going on."""
    store = join_run(run).open_store()
    try:
        stats = store.stats()
        for name in stats.__struct_fields__:
            if name != "counters":
                typer.echo(f"{name:<24} {getattr(stats, name)}")
        for name, count in sorted(stats.counters.items()):
            typer.echo(f"{'counters.' + name:<40} {count}")
        for _, group in zip(range(groups), store.scan(), strict=False):
            state = "settled" if group.settled else "open"
            typer.echo(
                f"{group.group_id} {state:<8} {group.environment} start {group.start} {group.num_bytes} bytes"
            )
    finally:
        store.close()


@app.command()
def verify(run: RunPath) -> None:
    """Recount every record; exit with 4 if a trajectory was lost or an account is wrong."""
    store = join_run(run).open_store()
    try:
        problems = store.audit()
        lost = count_lost(store.stats())
    finally:
        store.close()
    if problems or lost:
        raise StoreError(
            f"the store's accounts are wrong: {'; '.join(problems) or 'trajectories lost'}", got=lost
        )
    typer.echo("accounts are right: 0 trajectories lost")


@app.command()
def replay(run: RunPath) -> None:
    """Train the whole journal again from the stored frames; exit with 4 if other weights come out."""
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
