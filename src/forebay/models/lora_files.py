"""Adapters on the disk in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

What an adapter computes beyond `x W + scale (x A) B` is refused by name; so is every setting that is not
known here and is not empty.

References:
    https://huggingface.co/docs/peft/developer_guides/checkpoint; settings of `LoraConfig` in PEFT 0.21.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from forebay.errors import ConfigError, ModelError
from forebay.models.checkpoint_io import read_file
from forebay.models.config import CONFIG_FILE as MODEL_CONFIG_FILE
from forebay.models.config import ModelConfig
from forebay.models.families import WRAPPERS
from forebay.models.lora_layout import (
    adapter_entry,
    beside_images,
    check_adapter_shapes,
    from_peft_tensors,
    to_peft_tensors,
)
from forebay.models.settings import ALL_LINEAR, PROJECTIONS, LoraSettings

CONFIG_FILE: Final = "adapter_config.json"
TENSOR_FILE: Final = "adapter_model.safetensors"
log = logging.getLogger(__name__)

_OWN: Final = ("r", "lora_alpha", "use_rslora", "target_modules")
# Settings that say how adapters were made, trained or are run; none changes what they compute.
_OF_NO_MATTER: Final = (
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
)
# Values besides empty ones that leave a setting without effect.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    # Others than these change the weights of the model itself.
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),
}


def read_adapter_settings(directory: Path) -> LoraSettings:
    """Read which adapters a directory holds.

    Raises:
        ModelError: There is no `adapter_config.json`, it is damaged, or it asks for a feature that is not
            computed, which is named.
    """
    path = directory / CONFIG_FILE
    _require(path)
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}", remedy="Copy the adapters again.") from error
    if not isinstance(entry, dict):
        raise ModelError(f"{path} must hold a JSON object", got=type(entry).__name__)
    _refuse_features(path, entry)
    if entry.get("lora_dropout"):
        log.warning("%s: lora_dropout=%s is not applied", path, entry["lora_dropout"])
    return LoraSettings(
        rank=_number(path, entry, "r", lambda value: isinstance(value, int) and value >= 1),
        alpha=_number(
            path,
            entry,
            "lora_alpha",
            lambda value: isinstance(value, int | float) and 0 < value < math.inf,
        ),
        rslora=bool(entry.get("use_rslora")),
        targets=_targets(path, entry.get("target_modules")),
    )


def load_adapters(directory: Path, config: ModelConfig, lora: LoraSettings) -> dict[str, Any]:
    """Read adapters that must be those of some settings.

    Args:
        directory: As PEFT writes it.
        config: The model that they belong to.
        lora: What they should be; `path` is not looked at.

    Returns:
        Their tree, float32 NumPy arrays.

    Raises:
        ConfigError: They are others; the message says how to ask for these.
        ModelError: A file is missing or damaged, or they belong to another model.
    """
    check_adapter_files(directory, config, lora)
    return from_peft_tensors(read_file(directory / TENSOR_FILE), config, lora)


def check_adapter_files(directory: Path, config: ModelConfig, lora: LoraSettings) -> None:
    """Check settings and headers of adapters as `load_adapters` does; no tensor is read."""
    found = read_adapter_settings(directory)
    wanted = {
        "rank": (found.rank, lora.rank),
        "alpha": (found.alpha, lora.alpha),
        "rslora": (found.rslora, lora.rslora),
        "targets": (list(found.projections), list(lora.projections)),
    }
    for name, (theirs, asked) in wanted.items():
        if theirs != asked:
            raise ConfigError(
                f"the adapters in {directory} are others than model.lora asks for: {name} differs",
                got=f"{name} {asked}",
                limit=f"{name} {theirs}",
                remedy=f"Set model.lora.{name}={json.dumps(theirs)}.",
            )
    _require(directory / TENSOR_FILE)
    shapes = read_file(directory / TENSOR_FILE, lambda file, name: tuple(file.get_slice(name).get_shape()))
    check_adapter_shapes(shapes, config, lora)


def save_adapters(
    directory: Path,
    adapters: Mapping[str, Any],
    config: ModelConfig,
    lora: LoraSettings,
    *,
    base: str | None = None,
) -> None:
    """Write adapters as PEFT does; the directory appears whole or not at all.

    Args:
        directory: Must not exist yet.
        adapters: Their tree, arrays that NumPy can read.
        config: The model that they belong to.
        lora: Which they are.
        base: Where that model can be found, for programs that look it up; of a model of text and images,
            adapters get the names that its text has there.

    Raises:
        ModelError: The directory exists already.
    """
    if directory.exists():
        raise ModelError(f"{directory} exists already", remedy="Choose another directory.")
    partial = directory.with_name(f".partial-{os.getpid()}-{directory.name}")
    partial.mkdir(parents=True)
    try:
        text = json.dumps(adapter_entry(lora, base), indent=2, sort_keys=True)
        (partial / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        tensors = {
            name: np.asarray(tensor, np.float32)
            for name, tensor in to_peft_tensors(adapters, config, lora).items()
        }
        if base is not None and _has_images(Path(base)):
            tensors = beside_images(tensors)
        save_file(tensors, partial / TENSOR_FILE, metadata={"format": "pt"})
        shutil.copymode(partial / CONFIG_FILE, partial / TENSOR_FILE)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require(path: Path) -> None:
    if not path.is_file():
        raise ModelError(
            f"adapters not found: {path}",
            remedy=f"Name a directory with {CONFIG_FILE} and {TENSOR_FILE}, as PEFT writes it.",
        )


def _has_images(base: Path) -> bool:
    path = base / MODEL_CONFIG_FILE
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("model_type") in WRAPPERS


def _refuse_features(path: Path, entry: Mapping[str, Any]) -> None:
    for name, value in entry.items():
        if name in _OWN or name in _OF_NO_MATTER or not value:
            continue
        if value not in _HARMLESS.get(name, ()):
            raise ModelError(
                f"{path}: {name} is not supported",
                got=repr(value),
                limit=" or ".join(map(repr, _HARMLESS.get(name, (None,)))),
                remedy="Use adapters of plain LoRA, or merge these into the model with PEFT and load that.",
            )


def _number(path: Path, entry: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    value = entry.get(name)
    if isinstance(value, bool) or not fits(value):
        raise ModelError(f"{path}: {name} must be a positive number", got=repr(value))
    return value


def _targets(path: Path, value: Any) -> tuple[Any, ...]:
    names = (value,) if value == ALL_LINEAR else value
    if not isinstance(names, list | tuple) or not names:
        raise ModelError(
            f"{path}: target_modules must be a list of names",
            got=repr(value),
            limit=", ".join(PROJECTIONS),
            remedy="Write out the modules that the pattern stands for.",
        )
    unknown = [name for name in names if name not in (*PROJECTIONS, ALL_LINEAR)]
    if unknown:
        raise ModelError(
            f"{path}: target_modules names modules that get no adapters here",
            got=", ".join(map(str, unknown)),
            limit=", ".join(PROJECTIONS),
            remedy="Use adapters on these projections only, or merge them into the model with PEFT.",
        )
    return LoraSettings(rank=1, targets=tuple(names)).projections
