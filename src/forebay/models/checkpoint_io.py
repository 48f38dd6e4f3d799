"""Model files: Hugging Face directories (`config.json`, safetensors) and, to read only, GGUF files."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by name only once this is imported
import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from forebay.errors import ModelError
from forebay.models.config import CONFIG_FILE, ModelConfig, load_config
from forebay.models.gguf import gguf_config
from forebay.models.gguf_file import is_gguf, read_gguf
from forebay.models.gguf_tensors import check_model_file, read_hf_tensors
from forebay.models.hf import check_shapes, from_hf_tensors, text_names

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_T = TypeVar("_T")
_DOWNLOAD_AGAIN = "Download or export the model again."
log = logging.getLogger(__name__)


def load_model(
    path: Path, *, num_real_tokens: int | None = None, dtype: DTypeLike = np.float32
) -> tuple[ModelConfig, dict[str, Any]]:
    """Read a model: a Hugging Face directory, or a GGUF file.

    Args:
        path: A directory with `config.json` and either `model.safetensors` or shards with an index, or a GGUF
            file.
        num_real_tokens: Size of the tokenizer's vocabulary, where it is smaller than the model's.
        dtype: Type of the returned arrays.

    Returns:
        The configuration and the parameter tree (NumPy).

    Raises:
        ModelError: Something is missing, damaged, contradictory or not supported; the message names it.
    """
    if is_gguf(path):
        file = read_gguf(path)
        config = gguf_config(file, num_real_tokens)
        return config, from_hf_tensors(read_hf_tensors(file, config), config, dtype)
    config = load_config(path, num_real_tokens)
    return config, from_hf_tensors(read_tensors(path), config, dtype)


def save_model(
    directory: Path,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    files: Mapping[str, bytes] | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Write a Hugging Face model directory; it appears whole or not at all.

    Args:
        directory: Must not exist yet.
        config: The model.
        tensors: Its arrays by Hugging Face name, any float type.
        files: What else belongs to the model, the tokenizer for instance: contents by name.
        dtype: Type that the weights are written in, `float32` or `bfloat16`.
        max_shard_bytes: Tensors are split over several files with an index when they exceed this.

    Raises:
        ModelError: The directory exists already.
    """
    if directory.exists():
        raise ModelError(f"{directory} exists already", remedy="Choose another directory.")
    partial = directory.with_name(f".partial-{os.getpid()}-{directory.name}")
    partial.mkdir(parents=True)
    try:
        for name, content in (files or {}).items():
            (partial / name).write_bytes(content)
        text = json.dumps(config.to_hf() | {"torch_dtype": dtype}, indent=1)
        (partial / CONFIG_FILE).write_text(text, encoding="utf-8")
        write_tensors(partial, cast(tensors, dtype), max_shard_bytes)
        for shard in partial.glob("*.safetensors"):  # which that library lets only their owner read
            shutil.copymode(partial / CONFIG_FILE, shard)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cast(tensors: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Return tensors of a type by name, `float32` or `bfloat16`; rounded to nearest."""
    return {name: tensor.astype(np.dtype(dtype)) for name, tensor in tensors.items()}


def write_tensors(directory: Path, tensors: dict[str, np.ndarray], max_shard_bytes: int) -> None:
    """Write tensors as one safetensors file, or as shards with an index beyond `max_shard_bytes`."""
    shards = _split(tensors, max_shard_bytes)
    if len(shards) == 1:
        save_file(shards[0], directory / SINGLE_FILE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total_bytes = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """Read every tensor of a model directory by its Hugging Face name.

    Of a model of text and images, the tensors of the text are read, under the names of a text model.

    Raises:
        ModelError: A file is missing or damaged, holds something else than floating-point numbers, or the
            index does not fit the files.
    """
    return _read_files(directory, _finite)


def check_model(path: Path, config: ModelConfig) -> None:
    """Check a model directory or GGUF file by the headers of its files; no tensor is read.

    Raises:
        ModelError: A file is missing or cut short, or holds the tensors of another model.
    """
    if is_gguf(path):
        check_model_file(read_gguf(path), config)
        return
    shapes = _read_files(path, lambda file, name: tuple(file.get_slice(name).get_shape()))
    check_shapes(shapes, config)


def read_file(path: Path, read: Callable[[Any, str], _T] | None = None) -> dict[str, Any]:
    """Read one safetensors file of floating-point numbers.

    Args:
        path: The file.
        read: What is wanted of a tensor, given the open file and its name; None: its finite numbers.

    Returns:
        By name.

    Raises:
        ModelError: It is missing or damaged, or holds something else.
    """
    wanted = read or _finite
    names = sorted(_names_in(path))
    with _opened(path) as file:
        return {name: wanted(file, name) for name in names}


def _finite(file: Any, name: str) -> np.ndarray:
    tensor: np.ndarray = file.get_tensor(name)
    if not np.isfinite(tensor).all():
        raise ModelError(f"tensor {name} holds numbers that are not finite", remedy=_DOWNLOAD_AGAIN)
    return tensor


def _read_files(directory: Path, read: Callable[[Any, str], _T]) -> dict[str, _T]:
    paths = _paths_of_tensors(directory)
    names = text_names(paths)
    if len(names) < len(paths):
        left_out = sorted({name.split(".layers.")[0] for name in paths if name not in names})
        log.warning(
            "%s is a model of text and images: its text is read, and %d tensors are left out (%s ...)",
            directory,
            len(paths) - len(names),
            left_out[0],
        )
    found: dict[str, _T] = {}
    for path in sorted(set(paths.values())):
        with _opened(path) as file:
            found |= {names[name]: read(file, name) for name in names if paths[name] == path}
    return found


def _paths_of_tensors(directory: Path) -> dict[str, Path]:
    """Return the file that holds each tensor of a model."""
    index_path = directory / INDEX_FILE
    if not index_path.is_file():
        return dict.fromkeys(_names_in(directory / SINGLE_FILE), directory / SINGLE_FILE)
    if (directory / SINGLE_FILE).exists():
        raise ModelError(
            f"{directory} holds two models: {SINGLE_FILE}, and the files of {INDEX_FILE}",
            remedy="Take out the one that is not wanted.",
        )
    named = {name: directory / file for name, file in _read_index(index_path).items()}
    found: dict[str, Path] = {}
    for path in sorted(set(named.values())):
        names = _names_in(path)
        _refuse(names & set(found), index_path, "names files that hold a tensor twice")
        found |= dict.fromkeys(names, path)
    _refuse(set(named) - set(found), index_path, "names tensors that no file holds")
    _refuse(set(found) - set(named), index_path, "does not name tensors that its files hold")
    elsewhere = {name for name in named if named[name] != found[name]}
    _refuse(elsewhere, index_path, "names the wrong file for")
    return found


def _refuse(names: set[str], index_path: Path, problem: str) -> None:
    if names:
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        raise ModelError(
            f"{index_path} {problem}: {', '.join(sorted(names)[:6])}{more}", remedy=_DOWNLOAD_AGAIN
        )


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = {str(key): str(value) for key, value in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a safetensors index: {error}", remedy=_DOWNLOAD_AGAIN) from error
    outside = sorted(name for name in set(names.values()) if Path(name).name != name)
    if outside:
        raise ModelError(f"{path} points outside its directory", got=outside[0], remedy=_DOWNLOAD_AGAIN)
    return names


def _names_in(path: Path) -> set[str]:
    """Return the names of a file's tensors, which must be floating-point numbers."""
    if not path.is_file():
        pickled = sorted(path.parent.glob("*.bin"))
        remedy = "Convert the model to safetensors: files that run code when they are read are not."
        raise ModelError(f"model weights not found: {path}", remedy=remedy if pickled else _DOWNLOAD_AGAIN)
    with _opened(path) as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - no mapping
    for name, kind in kinds.items():
        if kind not in _FLOATS:
            raise ModelError(
                f"tensor {name} of {path} is of a type that weights are not read from",
                got=kind,
                limit=", ".join(_FLOATS),
                remedy="Use the model before it was quantized, or a GGUF file of it.",
            )
    return set(kinds)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        size_bytes = path.stat().st_size
        raise ModelError(
            f"damaged safetensors file {path}: {error}", got=f"{size_bytes} bytes", remedy=_DOWNLOAD_AGAIN
        ) from error


def _split(tensors: dict[str, np.ndarray], max_shard_bytes: int) -> list[dict[str, np.ndarray]]:
    shards: list[dict[str, np.ndarray]] = [{}]
    filled_bytes = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            filled_bytes = 0
        shards[-1][name] = tensor
        filled_bytes += tensor.nbytes
    return shards
