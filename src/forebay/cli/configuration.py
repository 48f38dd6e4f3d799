"""`forebay config`: check a configuration, show it whole, compare two, or describe what may be in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli.completing import complete_override, complete_run
from forebay.config import RunConfig, load_config
from forebay.config.changes import changes
from forebay.config.dump import json_tree, to_toml, tree_to_toml
from forebay.config.schema import json_schema

app = typer.Typer(help="Check, show and compare configurations.", no_args_is_help=True)

ConfigPath = Annotated[Path, typer.Argument(help="TOML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="section.key=value items.", show_default=False, autocompletion=complete_override),
]


@app.command()
def check(config: ConfigPath, overrides: Overrides = None) -> None:
    """Check a configuration without starting anything.

    Models, adapters, data and addresses that it names may be on another machine: `forebay train --dry-run`
    looks at them.

    Examples:
        forebay config check examples/calculator.toml
        forebay config check examples/calculator.toml staleness.max_staleness=4
    """
    load_config(config, overrides or [])
    typer.echo(f"{config}: ok")


@app.command()
def show(
    config: ConfigPath,
    overrides: Overrides = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only what differs from the defaults.")] = False,
) -> None:
    """Print a configuration with every default filled in, as TOML.

    Examples:
        forebay config show examples/calculator.toml
        forebay config show examples/calculator.toml learner.steps=200 --diff
    """
    loaded = load_config(config, overrides or [])
    typer.echo(tree_to_toml(changes(loaded)) if diff else to_toml(loaded))


@app.command()
def diff(first: ConfigPath, second: ConfigPath) -> None:
    """Print the settings that differ between two configurations.

    Example:
        forebay config diff examples/calculator.toml examples/warm_start.toml
    """
    for line in differences(load_config(first), load_config(second)):
        typer.echo(line)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors and programs.

    Example:
        forebay config schema
    """
    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False, allow_nan=False))


@app.command()
def ladder(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run directory, made by `forebay train`.", show_default=False, autocompletion=complete_run
        ),
    ],
    max_programs: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Most shapes; default: as the run is configured.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose batch shapes from the lengths in a run's store, as a setting to paste into the next run's file.

    The largest shape stays: it is what the memory of a step allows. A run keeps the shapes that it was
    started with. Sequences are measured whole, so they are a little longer than what is trained.

    Examples:
        forebay config ladder runs/calculator
        forebay config ladder runs/calculator --max-programs 4
    """
    # Runs are compared with this module's help, so it cannot need them in turn.
    from forebay.cli.ladder import choose_ladder, to_toml_lines

    chosen = choose_ladder(run, max_programs)
    typer.echo(json.dumps(chosen._asdict()) if as_json else "\n".join(to_toml_lines(chosen)))


def differences(first: RunConfig, second: RunConfig) -> list[str]:
    """Return one line for each setting whose values differ, `key: first -> second`."""
    left, right = _flat(json_tree(first)), _flat(json_tree(second))
    keys = dict.fromkeys([*left, *right])
    return [
        f"{key}: {left.get(key, '(absent)')!r} -> {right.get(key, '(absent)')!r}"
        for key in keys
        if left.get(key) != right.get(key)
    ]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
