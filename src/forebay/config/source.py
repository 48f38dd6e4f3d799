"""Where configuration comes from: a TOML file, the files it extends, and overrides from the command line.

The merged tree remembers which file and line set each key, so that an error can point there.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from pydantic import BaseModel, ValidationError

from forebay.errors import ConfigError

Key = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)
_MAX_EXTENDS = 8
_NAME = "NAME"
_MAX_SUGGESTED = 3
_SECTION = re.compile(r"^\s*\[(?P<name>[^\[\]]+)\]")
_ASSIGNMENT = re.compile(r"^\s*(?P<key>[A-Za-z0-9_.\"'-]+)\s*=")


class ConfigSource(msgspec.Struct, frozen=True, kw_only=True):
    """A merged configuration tree and the origin of its keys.

    Args:
        tree: Nested tables.
        origins: For each key path, `file:line` or `command line`.
        path: The outermost file; None if there is none.
    """

    tree: dict[str, Any]
    origins: dict[Key, str]
    path: Path | None = None


def read_source(path: Path | None, overrides: Iterable[str] = ()) -> ConfigSource:
    """Read a TOML file with everything it extends, then apply overrides.

    Args:
        path: The file; None for defaults only.
        overrides: `section.key=value` items; the value is TOML, and a bare word is a string.

    Raises:
        ConfigError: A file is missing, does not parse, extends itself, or an override is malformed.
    """
    tree: dict[str, Any] = {}
    origins: dict[Key, str] = {}
    for file in _chain(path):
        _merge(tree, _parse(file), origins, _lines(file), file)
    for override in overrides:
        key, value = _override(override)
        _merge(tree, _nest(key, value), origins, {}, None)
    return ConfigSource(tree=tree, origins=origins, path=path)


def validate(model: type[M], source: ConfigSource) -> M:
    """Validate a merged tree against a settings model, strictly: "12" is no integer, and neither is true.

    Raises:
        ConfigError: The first fault found, with file and line, and the nearest valid name for an unknown key.
    """
    try:
        # As JSON, because there strictness takes an array for a tuple and a string for a path.
        return model.model_validate_json(json.dumps(source.tree, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(describe(error, model, source)) from None


def describe(error: ValidationError, model: type[BaseModel], source: ConfigSource) -> str:
    """Return what is wrong as one line: the first fault with its place, and the others after it."""
    lines = [_explain(model, source, dict(fault)) for fault in error.errors(include_url=False)]
    more = f" ({len(lines) - 1} more: {'; '.join(lines[1:4])})" if len(lines) > 1 else ""
    return lines[0] + more


def _chain(path: Path | None) -> list[Path]:
    chain: list[Path] = []
    while path is not None:
        if path in chain or len(chain) == _MAX_EXTENDS:
            raise ConfigError(f"{path}: extends goes in a circle or too deep", limit=f"{_MAX_EXTENDS} files")
        chain.append(path)
        parent = _parse(path).get("extends")
        if parent is not None and not isinstance(parent, str):
            raise ConfigError(f"{path}: extends must be a file name", got=repr(parent))
        path = (path.parent / parent) if parent else None
    return chain[::-1]


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}", remedy="Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _lines(path: Path) -> dict[Key, int]:
    """Map each key path to its line; good enough for the plain TOML that people write."""
    found: dict[Key, int] = {}
    section: Key = ()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if match := _SECTION.match(line):
            section = _split(match["name"])
            found[section] = number
        elif match := _ASSIGNMENT.match(line):
            found.setdefault(section + _split(match["key"]), number)
    return found


def _split(dotted: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _merge(
    tree: dict[str, Any],
    new: Mapping[str, Any],
    origins: dict[Key, str],
    lines: Mapping[Key, int],
    file: Path | None,
    prefix: Key = (),
) -> None:
    for name, value in new.items():
        if not prefix and name == "extends":
            continue
        key = (*prefix, name)
        line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), 1)
        origins[key] = f"{file}:{line}" if file else "command line"
        if isinstance(value, dict):
            below = tree.setdefault(name, {})
            if isinstance(below, dict):
                _merge(below, value, origins, lines, file, key)
                continue
        tree[name] = value


def _override(text: str) -> tuple[Key, Any]:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"override {text!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    return _split(key), value


def _nest(key: Key, value: Any) -> dict[str, Any]:
    for name in reversed(key):
        value = {name: value}
    return dict(value)


def _explain(model: type[BaseModel], source: ConfigSource, fault: dict[str, Any]) -> str:
    key = tuple(str(part) for part in fault["loc"])
    where = next((source.origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in source.origins), "")
    where = where or (str(source.path) if source.path else "")
    place = f"{where}: " if where else ""
    dotted = ".".join(key)
    if fault["type"] == "extra_forbidden":
        section = f"[{'.'.join(key[:-1])}]" if key[:-1] else "the top level"
        return f"{place}unknown key {key[-1]!r} in {section}.{_suggest(model, key)}"
    if fault["type"] == "missing":
        return f"{place}missing key {dotted!r}."
    if fault["type"] == "model_type":
        return f"{place}{dotted} is a section: write [{dotted}]{_named(model, key)}, got {fault['input']!r}"
    message = fault["msg"].removeprefix("Value error, ")
    got = "" if fault["type"] == "value_error" else f", got {fault['input']!r}"
    return f"{place}{dotted + ': ' if dotted else ''}{message}{got}"


def _suggest(model: type[BaseModel], key: Key) -> str:
    """Name the nearest valid key: first in the same section, then the same name in another one."""
    keys = [".".join(_spelled_like(path, key)) for path in known_keys(model)]
    same = [k for k in keys if k.split(".")[:-1] == list(key[:-1])]
    near = difflib.get_close_matches(".".join(key), same, 1, 0.6)
    elsewhere = [k for k in keys if k.split(".")[-1] == key[-1]] or difflib.get_close_matches(
        key[-1], [k for k in keys if "." not in k], 1, 0.6
    )
    # The same word in another section is likelier meant than another word in this one.
    exact = elsewhere and elsewhere[0].split(".")[-1] == key[-1]
    found = (elsewhere if exact else near or elsewhere) or difflib.get_close_matches(
        ".".join(key), keys, 1, 0.5
    )
    names = " or ".join(map(repr, found[: _MAX_SUGGESTED if exact else 1]))
    return f" Did you mean {names}?" if found else f" Valid keys here: {', '.join(same[:12])}."


def _spelled_like(known: Key, key: Key) -> Key:
    """Replace the NAME of a named section by the name that the user gave it."""
    return tuple(key[n] if part == _NAME and len(key) > n + 1 else part for n, part in enumerate(known))


def _named(model: type[BaseModel], key: Key) -> str:
    """Say that a section needs a name, where it does."""
    return f", or {key[-1]} is a key of [{key[0]}.NAME]" if (key[0], _NAME) in known_keys(model) else ""


def known_keys(model: type[BaseModel], prefix: Key = ()) -> list[Key]:
    """List every key path of a settings model, sections included; `NAME` stands for names of the user."""
    keys: list[Key] = []
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        keys.append(path)
        kind: Any = field.annotation
        if get_origin(kind) is dict and _is_model(get_args(kind)[1]):
            path, kind = (*path, _NAME), get_args(kind)[1]
            keys.append(path)
        if _is_model(kind):
            keys += known_keys(kind, path)
    return keys


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
