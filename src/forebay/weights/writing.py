"""The files of a version: written under a name that nobody reads, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import xxhash

from forebay.telemetry.faults import fault_point
from forebay.weights.layout import MANIFEST_FILE, PARTIAL_PREFIX, Manifest, Shard
from forebay.weights.settings import WeightSettings
from forebay.weights.shard import encode


def write_directory(
    target: Path, manifest: Manifest, tensors: Mapping[str, npt.NDArray[Any]], settings: WeightSettings
) -> None:
    """Write tensors and their manifest into a directory, which appears whole or not at all.

    Args:
        target: Must not exist.
        manifest: Without its shards.
        tensors: By name; read, never kept.
        settings: Durability and shard size.

    Raises:
        OSError: The disk is full or failed.
    """
    partial = target.with_name(f"{PARTIAL_PREFIX}{target.name}")
    partial.mkdir()
    parts = _split(tensors, settings.max_shard_bytes)
    shards = tuple(
        _write_shard(partial / _shard_name(index, len(parts)), part, manifest.version.version, settings)
        for index, part in enumerate(parts)
    )
    whole = msgspec.structs.replace(manifest, shards=shards)
    write_file(partial / MANIFEST_FILE, [msgspec.json.encode(whole)], settings)
    sync_directory(partial, settings)
    partial.rename(target)
    sync_directory(target.parent, settings)


def write_file(
    path: Path, pieces: Iterator[bytes | memoryview] | list[bytes], settings: WeightSettings
) -> int:
    """Write a new file piece by piece; return its size in bytes."""
    with path.open("xb") as file:
        num_bytes = sum(file.write(piece) for piece in pieces)
        if settings.durability == "fsync":
            file.flush()
            os.fsync(file.fileno())
    return num_bytes


def sync_directory(path: Path, settings: WeightSettings) -> None:
    """Make the names in a directory durable, if that is asked for."""
    if settings.durability == "fsync":
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_shard(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], version: int, settings: WeightSettings
) -> Shard:
    digest = xxhash.xxh3_128()

    def hashed() -> Iterator[bytes | memoryview]:
        for piece in encode(tensors):
            digest.update(piece)
            yield piece
            fault_point("weights_writing", version)

    num_bytes = write_file(path, hashed(), settings)
    return Shard(name=path.name, num_bytes=num_bytes, xxh3=digest.hexdigest())


def _shard_name(index: int, num_shards: int) -> str:
    if num_shards == 1:
        return "model.safetensors"
    return f"model-{index + 1:05d}-of-{num_shards:05d}.safetensors"


def _split(
    tensors: Mapping[str, npt.NDArray[Any]], max_shard_bytes: int
) -> list[dict[str, npt.NDArray[Any]]]:
    parts: list[dict[str, npt.NDArray[Any]]] = [{}]
    filled_bytes = 0
    for name, tensor in tensors.items():
        if parts[-1] and filled_bytes + tensor.nbytes > max_shard_bytes:
            parts.append({})
            filled_bytes = 0
        parts[-1][name] = tensor
        filled_bytes += tensor.nbytes
    return parts
