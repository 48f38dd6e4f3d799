"""Writes docs/reference/configuration.md from the settings models, or checks that it is what they say.

.venv/bin/python scripts/config_reference.py --write
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from forebay.config import RunConfig
from forebay.config.dump import to_toml

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "configuration.md"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_INTRODUCTION = """\
# Configuration

A run is one TOML file: `forebay train run.toml`. Every key below may also be given on the command line,
where it has the last word: `forebay train run.toml learner.steps=200 staleness.max_staleness=0`. A file may
build on another one with `extends = "base.toml"` as its first line. An unknown key, a wrong type or a
combination that could never work is an error with file and line. `forebay config show` prints a configuration
with every default filled in, and with `--diff` only what is none; `forebay config check` checks one,
`forebay config diff` compares two. `forebay config schema` prints a JSON Schema (draft 2020-12) of the file,
for completion and checks in an editor: write it to a file and name that in the first line,
`#:schema schema.json`.

This page is generated from the settings models by `scripts/config_reference.py`.
"""


def render() -> str:
    """Return the page."""
    lines = [_INTRODUCTION]
    for name, model in sections(RunConfig):
        lines += [f"## [{name}]", "", _summary(model), "", *table(model), ""]
    return "\n".join(lines)


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section with its model, subsections after the section that holds them."""
    for name, field in model.model_fields.items():
        kind = _section_kind(field)
        if kind is not None:
            full = f"{prefix}{name}" + (".NAME" if get_origin(field.annotation) is dict else "")
            yield full, kind
            yield from sections(kind, f"{full}.")


def table(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section as a table."""
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field)} | {_cell(field.description or '')} |"
        for name, field in model.model_fields.items()
        if _section_kind(field) is None
    ]
    return ["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def _section_kind(field: FieldInfo) -> type[BaseModel] | None:
    kind: Any = field.annotation
    if get_origin(kind) is dict:
        kind = get_args(kind)[1]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _summary(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(item, bound)}"
        for item in field.metadata
        for bound, sign in _BOUNDS.items()
        if getattr(item, bound, None) is not None
    ]
    return _cell(", ".join([_spelled(field.annotation), *bounds]))


def _spelled(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{_toml(value)}`" for value in arguments)
    if origin is tuple:
        return f"list of {_spelled(arguments[0])}"
    if origin is dict:
        return "table"
    if type(None) in arguments:
        return _spelled(next(item for item in arguments if item is not type(None)))
    if origin in (Union, UnionType):
        return " or ".join(map(_spelled, arguments))
    return {bool: "true or false", int: "integer", float: "number", str: "string", Path: "path"}.get(
        kind, "table"
    )


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"`{_cell(_toml(field.default))}`"


def _toml(value: Any) -> str:
    class Holder(BaseModel):
        value: Any

    text = to_toml(Holder(value=value)).strip()
    return "{}" if value == {} else text.removeprefix("value = ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page instead of checking it")
    if parser.parse_args().write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    same = PAGE.read_text(encoding="utf-8") == render()
    if not same:
        print(f"{PAGE} is out of date: run {sys.argv[0]} --write", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
