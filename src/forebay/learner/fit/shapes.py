"""Which model is meant: a directory with `config.json`, or a shape that comes with forebay.

Shapes are the published configurations without weights: meta-llama's Llama 3.1 8B, 70B and 405B, Qwen's
Qwen3-8B, Qwen3-30B-A3B and Qwen3-235B-A22B, and the text model of google's gemma-3-27b-it.
"""

from __future__ import annotations

import difflib
import json
from importlib import resources
from pathlib import Path

from forebay.errors import ConfigError
from forebay.models.config import ModelConfig, load_config

_DIRECTORY = resources.files("forebay") / "assets" / "shapes"


def shape_names() -> list[str]:
    """Return the shapes that come with forebay.

    Example:
        >>> "llama3-70b" in shape_names()
        True
    """
    return sorted(path.name.removesuffix(".json") for path in _DIRECTORY.iterdir())


def load_model(model: str) -> ModelConfig:
    """Read a shape by name, or the configuration in a directory.

    Args:
        model: A name of `shape_names`, or a directory; a path wins if both exist.

    Raises:
        ConfigError: It is neither; names the nearest shape.
        ModelError: Its configuration asks for what is not computed.
    """
    if Path(model).is_dir():
        return load_config(Path(model))
    names = shape_names()
    if model in names:
        return ModelConfig.from_hf(json.loads((_DIRECTORY / f"{model}.json").read_text(encoding="utf-8")))
    near = difflib.get_close_matches(model.lower(), names, n=1)
    raise ConfigError(
        f"no such model: {model}",
        limit=f"a directory with config.json, {', '.join(names)}",
        remedy=f"Did you mean {near[0]}?" if near else None,
    )
