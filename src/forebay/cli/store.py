"""`forebay store`: look into the store of a run, check its accounts, and take trajectories out."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath, configure_jax
from forebay.cli.runs import join_run
from forebay.cli.store_bench import bench
from forebay.cli.store_compact import compact
from forebay.cli.store_export import export
from forebay.cli.store_listing import ls
from forebay.cli.store_summary import summarize_store
from forebay.cli.store_verify import verify
from forebay.launch import divide_cpus
from forebay.store import count_lost
from forebay.telemetry.logs import setup_logging

app = typer.Typer(help="Look into the store of a run.", no_args_is_help=True)
app.command()(ls)
app.command()(export)
app.command()(verify)
app.command()(compact)
app.command()(bench)


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def stats(run: RunPath, as_json: JsonOption = False) -> None:
    """Print depth, bytes, ages and counters; the run may be going on, and nothing is changed.

    Examples:
        forebay store stats runs/calculator
        forebay store stats runs/calculator --json
    """
    joined = join_run(run)
    with joined.view_store() as view:
        snapshot = view.stats()
        if as_json:
            tree: dict[str, Any] = msgspec.to_builtins(snapshot) | {"lost": count_lost(snapshot)}
            typer.echo(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())
            return
        settings = joined.store_settings
        typer.echo(summarize_store(snapshot, view.scan(), settings.url or settings.path))


@app.command()
def show(
    run: RunPath,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="A group, or a trajectory; without it, the same as `stats`.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group or a trajectory: its state, members, messages, and each token's logprob, version and mask.

    Whether a token is trained is judged by the step that trained it, or else by the next one.

    Examples:
        forebay store show runs/calculator g00000012
        forebay store show runs/calculator g00000012.0.0
        forebay store show runs/calculator g00000012 --json
    """
    if name is None:
        stats(run, as_json)
        return
    from forebay.cli.store_item import show_item

    show_item(join_run(run), name, as_json=as_json)


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
