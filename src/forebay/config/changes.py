"""What a configuration changes: the settings that are not the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.config.run import RunConfig
from forebay.envs.settings import EnvironmentSettings


def changes(config: RunConfig) -> dict[str, Any]:
    """Return a tree with only those settings that are not the defaults; it loads as the same configuration.

    Args:
        config: The configuration.

    Example:
        >>> changes(RunConfig())
        {}
    """
    defaults = RunConfig()
    named = {name: EnvironmentSettings(name=name) for name in config.environment}
    base = defaults.model_copy(update={"environment": named}).model_dump(mode="json")
    tree = _changed(config.model_dump(mode="json"), base)
    if config.environment.keys() != defaults.environment.keys():
        # An environment that is all defaults is still one that the run has.
        chosen = tree.get("environment", {})
        tree["environment"] = {name: chosen.get(name, {}) for name in config.environment}
    return tree


def _changed(tree: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in tree.items():
        before = base.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inside = _changed(value, before)
            changed |= {name: inside} if inside else {}
        elif name not in base or value != before:
            changed[name] = value
    return changed
