"""`forebay config`: check a configuration, show it whole, or compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.config import RunConfig, load_config
from forebay.config.dump import json_tree, to_toml

app = typer.Typer(help="Check, show and compare configurations.", no_args_is_help=True)

ConfigPath = Annotated[Path, typer.Argument(help="TOML file.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value items.", show_default=False)]


@app.command()
def check(config: ConfigPath, overrides: Overrides = None) -> None:
    """Check a configuration without starting anything."""
    load_config(config, overrides or [])
    typer.echo(f"{config}: ok")


@app.command()
def show(config: ConfigPath, overrides: Overrides = None) -> None:
    """Print a configuration with every default filled in, as TOML."""
    typer.echo(to_toml(load_config(config, overrides or [])))


@app.command()
def diff(first: ConfigPath, second: ConfigPath) -> None:
    """Print the settings that differ between two configurations."""
    for line in differences(load_config(first), load_config(second)):
        typer.echo(line)


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
