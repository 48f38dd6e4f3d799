"""Reading published weights: cheap polling, verified loading."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import AdapterRecord, merge
from forebay.weights.layout import (
    BASE_NAME,
    MANIFEST_FILE,
    Manifest,
    Shard,
    list_versions,
    parse_manifest,
    read_marker,
    version_name,
)
from forebay.weights.shard import Tensors, decode

# Each retry needs a newer version published between two system calls of ours.
_MAX_TRIES = 10


class _Vanished(Exception):
    """The version was deleted before it could be locked."""


class WeightReader:
    """Read-only view of a weight directory; any number of readers in any number of processes.

    A version is locked (shared) while it is read, and the publisher deletes only what it can lock
    exclusively. The kernel frees the locks of a killed reader.

    Args:
        path: The weight directory; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base: tuple[str, Tensors] | None = None

    def latest(self) -> PolicyVersion | None:
        """Return the newest published version, or None; costs the read of one small file.

        Raises:
            WeightsError: The version marker is damaged.
        """
        return read_marker(self.path)

    def newer_than(self, version: PolicyVersion | None) -> PolicyVersion | None:
        """Return the newest published version if it is newer than `version`, else None.

        Args:
            version: What the caller has; None is older than every version.

        Raises:
            WeightsError: The version marker is damaged.
        """
        latest = self.latest()
        if latest is None or (version is not None and latest <= version):
            return None
        return latest

    def versions(self) -> tuple[PolicyVersion, ...]:
        """Return the versions that are still there, oldest first."""
        return list_versions(self.path)

    def manifest(self, version: PolicyVersion) -> Manifest:
        """Return the manifest of one version.

        Raises:
            WeightsError: The version is gone, or its manifest is damaged or mislabelled.
        """
        try:
            with self._locked(version) as manifest:
                return manifest
        except _Vanished:
            raise self._gone(version) from None

    def digest(self, version: PolicyVersion) -> str:
        """Return the content hash of one version; see `digest_of`.

        Raises:
            WeightsError: As for `manifest`.
        """
        return self.manifest(version).digest

    def base_digest(self) -> str:
        """Return the content hash of the model that versions are adapters on.

        Raises:
            WeightsError: There is none, or its manifest is damaged.
        """
        return self._base_manifest().digest

    def load(self, version: PolicyVersion | None = None) -> tuple[PolicyVersion, Tensors]:
        """Return a whole, verified version.

        Blocks for the read of the files; no lock is held afterwards. Adapters are merged into their model,
        which is read once and kept.

        Args:
            version: The version wanted; the newest by default. The newest takes the place of a deleted one.

        Returns:
            The version that was read, and its tensors by Hugging Face name (read-only).

        Raises:
            WeightsError: Nothing is published, the version is gone and there is no newer one, or a file does
                not match the manifest.
        """
        wanted = version if version is not None else self.latest()
        if wanted is None:
            raise WeightsError(
                f"no weights are published in {self.path}", remedy="Start the learner, or check the path."
            )
        for _ in range(_MAX_TRIES):
            try:
                with self._locked(wanted) as manifest:
                    return wanted, self._read(manifest)
            except _Vanished:
                newer = self.newer_than(wanted)
                if newer is None:
                    break
                wanted = newer
        raise self._gone(wanted)

    @contextmanager
    def hold(self, version: PolicyVersion, *, adapters: bool = False) -> Iterator[Path]:
        """Verify a version and keep it from being deleted, for a reader that opens its files by itself.

        Blocks for the read of the files.

        Args:
            version: Which one.
            adapters: Whether the reader wants adapters; whole weights otherwise.

        Yields:
            The version's directory: safetensors files that stay there until the context ends.

        Raises:
            WeightsError: The version is gone, is of the other kind, or a file does not match the manifest.
        """
        try:
            with self._locked(version) as manifest:
                if (manifest.adapter is not None) != adapters:
                    found, wanted = ("separate", "merged")[:: -1 if adapters else 1]
                    holds, needs = ("adapters only", "whole weights")[:: -1 if adapters else 1]
                    raise WeightsError(
                        f"{version_name(version)} holds {holds}, and whoever opens its files by itself "
                        f"needs {needs}",
                        got=f'weights.adapters="{found}"',
                        remedy=f'Start a run with weights.adapters="{wanted}".',
                    )
                if manifest.adapter is not None:
                    self._check_base(self.base_digest(), manifest.adapter)
                directory = self.path / version_name(version)
                for shard in manifest.shards:
                    _read_verified(directory / shard.name, shard)
                yield directory
        except _Vanished:
            raise self._gone(version) from None

    def base(self) -> tuple[Path, Tensors]:
        """Return the model that versions are adapters on, verified: its directory, and its tensors.

        Raises:
            WeightsError: There is none, or a file does not match its manifest.
        """
        directory = self.path / BASE_NAME
        return directory, _read_shards(directory, self._base_manifest())

    @contextmanager
    def _locked(self, version: PolicyVersion) -> Iterator[Manifest]:
        source = self.path / version_name(version) / MANIFEST_FILE
        try:
            with source.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                manifest = parse_manifest(file.read(), source)
                if manifest.version != version:
                    raise WeightsError(
                        f"{source} is mislabelled", got=tuple(manifest.version), limit=tuple(version)
                    )
                yield manifest
        except (FileNotFoundError, BlockingIOError):
            # Deleted, or locked by the publisher, which is about to delete it.
            raise _Vanished from None

    def _read(self, manifest: Manifest) -> Tensors:
        tensors = _read_shards(self.path / version_name(manifest.version), manifest)
        if manifest.adapter is None:
            return tensors
        return merge(self._base_of(manifest.adapter), tensors, manifest.adapter.scale)

    def _base_of(self, adapter: AdapterRecord) -> Tensors:
        if self._base is None:
            manifest = self._base_manifest()
            self._base = manifest.digest, _read_shards(self.path / BASE_NAME, manifest)
        digest, tensors = self._base
        self._check_base(digest, adapter)
        return tensors

    def _check_base(self, digest: str, adapter: AdapterRecord) -> None:
        if digest != adapter.base:
            raise WeightsError(
                f"{self.path / BASE_NAME} is another model than the adapters belong to",
                got=digest,
                limit=adapter.base,
            )

    def _base_manifest(self) -> Manifest:
        source = self.path / BASE_NAME / MANIFEST_FILE
        try:
            return parse_manifest(source.read_bytes(), source)
        except FileNotFoundError:
            raise WeightsError(
                f"{source} is missing: the model that published adapters belong to",
                remedy="Restart the learner: it publishes the model again.",
            ) from None

    def _gone(self, version: PolicyVersion) -> WeightsError:
        return WeightsError(
            f"version {version_name(version)} is no longer in {self.path}",
            got=[version_name(kept) for kept in self.versions()],
            remedy="Raise weights.keep_versions.",
        )


def _read_shards(directory: Path, manifest: Manifest) -> Tensors:
    tensors: Tensors = {}
    for shard in manifest.shards:
        tensors |= decode(_read_verified(directory / shard.name, shard), str(directory / shard.name))
    return tensors


def _read_verified(path: Path, shard: Shard) -> npt.NDArray[np.uint8]:
    with open(path, "rb", buffering=0, opener=_open_no_link) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes != shard.num_bytes:
            raise WeightsError(f"{path} is torn", got=f"{num_bytes} bytes", limit=shard.num_bytes)
        data = np.empty(num_bytes, np.uint8)
        filled = 0
        while filled < num_bytes and (count := file.readinto(data[filled:].data)):
            filled += count
    found = xxhash.xxh3_128_hexdigest(data.data)
    if filled != num_bytes or found != shard.xxh3:
        raise WeightsError(f"{path} does not match its manifest", got=found, limit=shard.xxh3)
    return data


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
