"""A configuration written down: as TOML for people, as JSON types for a run's manifest."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: BaseModel) -> str:
    """Return a settings model as TOML with every key; unset optional keys are left out.

    Args:
        config: Settings whose leaves are JSON types.
    """
    return tree_to_toml(config.model_dump(mode="json"))


def tree_to_toml(tree: Mapping[str, Any]) -> str:
    """Return nested tables as TOML; keys without a value are left out.

    Args:
        tree: JSON types.
    """
    return "\n".join(_table(tree, "")).strip() + "\n"


def json_tree(config: BaseModel) -> dict[str, Any]:
    """Return a settings model as JSON types; what JSON has no number for becomes a string that reads back.

    Args:
        config: Settings whose leaves are JSON types.
    """
    tree: dict[str, Any] = finite(config.model_dump(mode="json"))
    return tree


def finite(value: Any) -> Any:
    """Return JSON types with every number that JSON has no word for as a string that reads back.

    Example:
        >>> finite({"limit": [1.5, float("inf")]})
        {'limit': [1.5, 'inf']}
    """
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _table(tree: Mapping[str, Any], prefix: str) -> list[str]:
    values = {k: v for k, v in tree.items() if not isinstance(v, dict)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in values.items() if v is not None]
    if prefix and (lines or not tree):
        lines = ["", f"[{prefix}]", *lines]
    for name, value in tree.items():
        if isinstance(value, dict):
            lines += _table(value, f"{prefix}.{_key(name)}" if prefix else _key(name))
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
