"""Code that a configuration names as module:name, imported, with an explanation when there is none."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from forebay.errors import ConfigError

_REMEDY = "Run from the directory that holds the module, or install it."


def import_named(path: str, what: str) -> Any:
    """Import what a path names; the working directory is searched too.

    Args:
        path: `package.module:name`.
        what: What it is for; named in the error.

    Raises:
        ConfigError: There is no such module or name; the message names the nearest one.
    """
    module_name, _, name = path.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        return getattr(module, name)
    except ModuleNotFoundError as error:
        own = error.name == module_name
        near = _near_modules(module_name) if own else []
        remedy = f"Did you mean {near[0]}:{name}?" if near else _REMEDY
        raise ConfigError(f"{what} {path} cannot be imported: {error}", remedy=remedy) from error
    except AttributeError as error:
        near = _near_names(module_name, name)
        remedy = f"Did you mean {module_name}:{near[0]}?" if near else _REMEDY
        raise ConfigError(f"{what} {path} cannot be imported: {error}", remedy=remedy) from error
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"{what} {path} cannot be imported: {error}", remedy=_REMEDY) from error


def _near_modules(name: str) -> list[str]:
    """Return modules of the working directory whose names are close to one that does not exist."""
    return difflib.get_close_matches(name, [path.stem for path in Path().glob("*.py")], 1)


def _near_names(module_name: str, name: str) -> list[str]:
    """Return names of a module close to one that it lacks."""
    module: ModuleType | None = sys.modules.get(module_name)
    known = [known for known in vars(module) if not known.startswith("_")] if module else []
    return difflib.get_close_matches(name, known, 1)
