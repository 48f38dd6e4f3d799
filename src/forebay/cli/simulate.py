"""`forebay simulate`: what a run would do, on virtual time, from measured latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from forebay.cli.planning import read_profiles, read_scenario
from forebay.planner.showing import outcome_text
from forebay.planner.simulation import simulate as run


def simulate(
    profile: Annotated[list[Path], typer.Argument(help="What was measured; several files are merged.")],
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting of the simulated run.")
    ] = [],  # noqa: B006  # typer copies it
    config: Annotated[
        Path | None, typer.Option(help="Take batch, staleness and deadlines from a configuration.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a run would do: busy, goodput, staleness, discards, waits. Same seed, same answer.

    The product's own rules of dispatch, groups and staleness run on virtual time, with the latencies of a
    profile. A synchronous run is `max_staleness=0`.

    Examples:
        forebay simulate profile.json --set max_staleness=0
        forebay simulate profile.json --set straggler_probability=0.05 --set failure_probability=0.01
        forebay simulate profile.json --config run.toml --set environment_factor=4 --json
    """
    outcome = run(read_profiles(profile), read_scenario(config, settings))
    typer.echo(msgspec.json.encode(outcome).decode() if as_json else outcome_text(outcome))
