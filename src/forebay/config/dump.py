"""A configuration written as TOML."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel


def to_toml(config: BaseModel) -> str:
    """Return a settings model as TOML with every key; unset optional keys are left out.

    Args:
        config: Settings whose leaves are JSON types.
    """
    return "\n".join(_table(config.model_dump(mode="json"), "")).strip() + "\n"


def _table(tree: dict[str, Any], prefix: str) -> list[str]:
    values = {k: v for k, v in tree.items() if not isinstance(v, dict)}
    lines = [f"{k} = {_value(v)}" for k, v in values.items() if v is not None]
    if prefix and (lines or not tree):
        lines = ["", f"[{prefix}]", *lines]
    for name, value in tree.items():
        if isinstance(value, dict):
            lines += _table(value, f"{prefix}.{_key(name)}" if prefix else _key(name))
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value).replace("Infinity", "inf")
