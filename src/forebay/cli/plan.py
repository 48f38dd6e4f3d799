"""`forebay plan`: the smallest fleet that keeps the learner as busy as is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from forebay.cli.planning import read_profiles, read_scenario
from forebay.errors import ConfigError
from forebay.planner.drawing import draw_plan
from forebay.planner.plan import Plan, Prices, Wanted
from forebay.planner.plan import plan as search
from forebay.planner.showing import plan_text, toml
from forebay.staleness import OnStale
from forebay.telemetry.files import require_place, write_atomically


def plan(
    profile: Annotated[list[Path], typer.Argument(help="What was measured; several files are merged.")],
    busy: Annotated[
        float, typer.Option(help="The least time that the learner is to compute, 0 to 1.")
    ] = 0.97,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="The most that is allowed; default as much as it takes.")
    ] = None,
    on_stale: Annotated[OnStale, typer.Option(help="wait, drop or mask.")] = "wait",
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting of the run; see simulate.")
    ] = [],  # noqa: B006  # typer copies it
    config: Annotated[
        Path | None, typer.Option(help="Take batch and deadlines from a configuration.")
    ] = None,
    price_learner: Annotated[float, typer.Option(help="The learner's machine, per hour.")] = 0.0,
    price_generator: Annotated[float, typer.Option(help="One generator, per hour.")] = 0.0,
    price_actor_process: Annotated[float, typer.Option(help="One actor process, per hour.")] = 0.0,
    write: Annotated[Path | None, typer.Option(help="Write the settings to a new file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw busy by fleet size and staleness into a new SVG file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the smallest fleet that keeps the learner busy, by simulation, before anything is rented.

    Searches max_staleness, credit, generators and episodes in flight; says when decoupling does not help and
    what puts a wanted figure out of reach.

    Examples:
        forebay plan profile.json --busy 0.97
        forebay plan profile.json --config run.toml --max-staleness 8 --write planned.toml
        forebay plan profile.json --max-staleness 8 --picture plan.svg
        forebay plan environment.json learner.json --price-learner 12 --price-generator 4 --json
    """
    _require_places(write, picture)
    wanted = Wanted(
        busy=busy,
        max_staleness=max_staleness,
        on_stale=on_stale,
        prices=Prices(learner=price_learner, generator=price_generator, actor_process=price_actor_process),
    )
    found = search(read_profiles(profile), read_scenario(config, settings), wanted, _say)
    typer.echo(msgspec.json.encode(found).decode() if as_json else plan_text(found, busy))
    if write is not None:
        _write(write, found, config)
    if picture is not None:
        write_atomically(picture, draw_plan(found, busy).encode())
        typer.echo(f"wrote {picture}", err=True)


def _require_places(write: Path | None, picture: Path | None) -> None:
    for path in (write, picture):
        if path is not None:
            require_place(path, is_new=True)
    if write is not None and picture is not None and write.resolve() == picture.resolve():
        raise ConfigError(
            "--write and --picture name the same file", got=picture, remedy="Name two different files."
        )


def _write(path: Path, found: Plan, config: Path | None) -> None:
    base = None if config is None else str(config.resolve())
    write_atomically(path, f"{toml(found, base)}\n".encode())
    typer.echo(f"wrote {path}", err=True)


def _say(line: str) -> None:
    typer.echo(f"simulates {line}", err=True)
