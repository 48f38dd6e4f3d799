"""What the shell offers when a word is completed: runs, and keys and values of settings; without JAX."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

_RUNS = Path("runs")
_MANIFEST = "manifest.json"


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories that a word may become: below its directory, or in `runs`.

    Args:
        incomplete: The word so far.
    """
    typed = Path(incomplete)
    parent = typed if incomplete.endswith("/") else typed.parent
    found = [*parent.glob(f"*/{_MANIFEST}"), *_RUNS.glob(f"*/{_MANIFEST}"), *_RUNS.glob(f"*/*/{_MANIFEST}")]
    names = sorted({str(path.parent) for path in found})
    inside = [name for name in names if name.startswith(incomplete)]
    # A bare name is enough to find a run by: the shell then puts the whole path.
    return inside or [name for name in names if incomplete and Path(name).name.startswith(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the `section.key=value` items that a word may become.

    Args:
        ctx: Knows the configuration file that stands before.
        incomplete: The word so far.
    """
    from forebay.config import RunConfig

    names = _environments(ctx.params.get("config")) or ["calculator"]
    found = []
    for name in names:
        for key, kind in _keys(RunConfig, "", name):
            values = _values(kind)
            if "=" in incomplete and values:
                found += [f"{key}={value}" for value in values]
            elif "=" not in incomplete:
                found.append(f"{key}=")
    return [item for item in dict.fromkeys(found) if item.startswith(incomplete)]


def _keys(model: type[BaseModel], prefix: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a settings model with their types; `name` is that of an environment."""
    for field_name, field in model.model_fields.items():
        kind: Any = field.annotation
        path = f"{prefix}{field_name}"
        if get_origin(kind) is dict and _is_section(get_args(kind)[1]):
            path, kind = f"{path}.{name}", get_args(kind)[1]
        if _is_section(kind):
            yield from _keys(kind, f"{path}.", name)
        else:
            yield path, kind


def _values(kind: Any) -> list[str]:
    """Return the values of a setting that has only a few."""
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    inner = [item for item in get_args(kind) if item is not NoneType]
    return _values(inner[0]) if NoneType in get_args(kind) and len(inner) == 1 else []


def _environments(config: object) -> list[str]:
    try:
        table = tomllib.loads(Path(str(config)).read_text("utf-8")).get("environment", {})
    except (OSError, ValueError):  # there is no such file yet, or it is being written
        return []
    return list(table) if isinstance(table, dict) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
