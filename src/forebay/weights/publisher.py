"""Publishing weights: a version becomes visible whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import xxhash

from forebay.errors import WeightsError
from forebay.telemetry.faults import fault_point
from forebay.trajectory import PolicyVersion, check_name
from forebay.weights.layout import (
    FORMAT,
    MANIFEST_FILE,
    MARKER_FILE,
    PARTIAL_PREFIX,
    TRASH_PREFIX,
    Manifest,
    Marker,
    Shard,
    list_versions,
    read_marker,
    version_name,
)
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from forebay.weights.shard import digest_of, encode


class WeightPublisher:
    """The one writer of a weight directory; the lock of the run directory keeps others out.

    Args:
        path: The weight directory; made if it is missing.
        run_id: Name of the run, kept in every manifest.
        settings: Durability, retention and shard size.

    Raises:
        WeightsError: The directory holds weights of another run.
    """

    def __init__(self, path: Path, *, run_id: str, settings: WeightSettings | None = None) -> None:
        self.path = path
        self._run_id = check_name(run_id, "run_id")
        self._settings = settings if settings is not None else WeightSettings()
        path.mkdir(parents=True, exist_ok=True)
        self._latest = read_marker(path)
        self._refuse_other_run()
        self.sweep()

    def publish(
        self,
        version: PolicyVersion,
        tensors: Mapping[str, npt.NDArray[Any]],
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        """Write a version, make it visible, and delete what retention no longer keeps.

        The version marker moves last, so that a reader never sees a version before its content. Publishing
        the newest version again with the same content does nothing.

        Args:
            version: Newer than every version published before.
            tensors: By Hugging Face name; read before the call returns, never kept.
            metadata: Free text for the manifest.

        Returns:
            The version's directory.

        Raises:
            WeightsError: The version is older than the newest, exists with other content, or the disk failed.
        """
        digest = digest_of(tensors)
        target = self.path / version_name(version)
        if self._latest is not None and version < self._latest:
            raise WeightsError(
                "published versions never go back", got=tuple(version), limit=tuple(self._latest)
            )
        try:
            if not self._is_there(version, digest):
                self._write(version, tensors, digest, dict(metadata or {}))
            fault_point("weights_written", version.version)
            self._move_marker(version)
            self._retain()
        except OSError as error:
            self.sweep()
            raise WeightsError(
                f"cannot publish {target}: {error.strerror}",
                got=f"{shutil.disk_usage(self.path).free} bytes free",
                limit=f"{sum(tensor.nbytes for tensor in tensors.values())} bytes needed",
                remedy="Free disk space or lower weights.keep_versions.",
            ) from error
        return target

    def sweep(self) -> int:
        """Delete what a killed publisher left half-written or half-deleted; return how many directories."""
        leftovers = [p for p in self.path.iterdir() if p.name.startswith((PARTIAL_PREFIX, TRASH_PREFIX))]
        for leftover in leftovers:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        return len(leftovers)

    def _is_there(self, version: PolicyVersion, digest: str) -> bool:
        if version not in list_versions(self.path):
            return False
        published = WeightReader(self.path).digest(version)
        if published != digest:
            raise WeightsError(
                f"{version_name(version)} exists with other content",
                got=digest,
                limit=published,
                remedy="A resumed learner publishes under a new incarnation.",
            )
        return True

    def _write(
        self,
        version: PolicyVersion,
        tensors: Mapping[str, npt.NDArray[Any]],
        digest: str,
        metadata: dict[str, str],
    ) -> None:
        name = version_name(version)
        partial = self.path / f"{PARTIAL_PREFIX}{name}"
        partial.mkdir()
        parts = _split(tensors, self._settings.max_shard_bytes)
        shards = tuple(
            self._write_shard(partial / _shard_name(index, len(parts)), part, version)
            for index, part in enumerate(parts)
        )
        manifest = Manifest(
            format=FORMAT,
            run_id=self._run_id,
            version=version,
            digest=digest,
            shards=shards,
            metadata=metadata,
        )
        self._write_file(partial / MANIFEST_FILE, [msgspec.json.encode(manifest)])
        self._sync_directory(partial)
        partial.rename(self.path / name)
        self._sync_directory(self.path)

    def _write_shard(
        self, path: Path, tensors: Mapping[str, npt.NDArray[Any]], version: PolicyVersion
    ) -> Shard:
        digest = xxhash.xxh3_128()

        def hashed() -> Iterator[bytes | memoryview]:
            for piece in encode(tensors):
                digest.update(piece)
                yield piece
                fault_point("weights_writing", version.version)

        num_bytes = self._write_file(path, hashed())
        return Shard(name=path.name, num_bytes=num_bytes, xxh3=digest.hexdigest())

    def _write_file(self, path: Path, pieces: Iterator[bytes | memoryview] | list[bytes]) -> int:
        with path.open("xb") as file:
            num_bytes = sum(file.write(piece) for piece in pieces)
            if self._settings.durability == "fsync":
                file.flush()
                os.fsync(file.fileno())
        return num_bytes

    def _move_marker(self, version: PolicyVersion) -> None:
        if version == self._latest:
            return
        partial = self.path / f"{PARTIAL_PREFIX}{MARKER_FILE}"
        partial.unlink(missing_ok=True)
        self._write_file(partial, [msgspec.json.encode(Marker(version=version))])
        partial.rename(self.path / MARKER_FILE)
        self._sync_directory(self.path)
        self._latest = version

    def _retain(self) -> None:
        for version in list_versions(self.path)[: -self._settings.keep_versions]:
            self._delete_unless_read(version)

    def _delete_unless_read(self, version: PolicyVersion) -> None:
        path = self.path / version_name(version)
        with (path / MANIFEST_FILE).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            # Renamed first: a reader that comes now finds nothing, even if this process is killed halfway.
            trash = self.path / f"{TRASH_PREFIX}{path.name}"
            path.rename(trash)
            shutil.rmtree(trash)

    def _sync_directory(self, path: Path) -> None:
        if self._settings.durability == "fsync":
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _refuse_other_run(self) -> None:
        if self._latest is None:
            return
        owner = WeightReader(self.path).manifest(self._latest).run_id
        if owner != self._run_id:
            raise WeightsError(
                f"{self.path} holds the weights of another run",
                got=owner,
                limit=self._run_id,
                remedy="Choose another run directory.",
            )


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
