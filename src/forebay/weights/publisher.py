"""Publishing weights: a version becomes visible whole, or not at all."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from forebay.errors import WeightsError
from forebay.telemetry.faults import fault_point
from forebay.trajectory import PolicyVersion, check_name
from forebay.weights.adapters import AdapterRecord
from forebay.weights.layout import (
    BASE_NAME,
    FORMAT,
    MANIFEST_FILE,
    MARKER_FILE,
    PARTIAL_PREFIX,
    TRASH_PREFIX,
    Manifest,
    Marker,
    list_versions,
    read_marker,
    version_name,
)
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from forebay.weights.shard import digest_of
from forebay.weights.writing import sync_directory, write_directory, write_file


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
        adapter: AdapterRecord | None = None,
    ) -> Path:
        """Write a version, make it visible, and delete what retention no longer keeps.

        The version marker moves last, so that a reader never sees a version before its content. Publishing
        the newest version again with the same content does nothing.

        Args:
            version: Newer than every version published before.
            tensors: By Hugging Face name; read before the call returns, never kept.
            metadata: Free text for the manifest.
            adapter: Says what `tensors` are adapters on, from `publish_base`; None if they are whole weights.

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
                self._write(target.name, version, tensors, digest, dict(metadata or {}), adapter)
            fault_point("weights_written", version.version)
            self._move_marker(version)
            self._retain()
        except OSError as error:
            raise self._failed(target, tensors, error) from error
        return target

    def publish_base(self, tensors: Mapping[str, npt.NDArray[Any]]) -> str:
        """Write the model that versions are adapters on, once; a resumed publisher finds it there.

        Args:
            tensors: By Hugging Face name; read before the call returns, never kept.

        Returns:
            Its digest, for `AdapterRecord.base`.

        Raises:
            WeightsError: There is another model already, or the disk failed.
        """
        digest, target = digest_of(tensors), self.path / BASE_NAME
        if (target / MANIFEST_FILE).is_file():
            published = WeightReader(self.path).base_digest()
            if published != digest:
                raise WeightsError(
                    f"{target} holds another model than the adapters are trained on",
                    got=digest,
                    limit=published,
                    remedy="Put the model of model.path back, or start another run.name.",
                )
            return digest
        try:
            self._write(BASE_NAME, PolicyVersion(0, 0), tensors, digest, {}, None)
        except OSError as error:
            raise self._failed(target, tensors, error) from error
        return digest

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

    def _failed(self, target: Path, tensors: Mapping[str, npt.NDArray[Any]], error: OSError) -> WeightsError:
        self.sweep()
        return WeightsError(
            f"cannot publish {target}: {error.strerror}",
            got=f"{shutil.disk_usage(self.path).free} bytes free",
            limit=f"{sum(tensor.nbytes for tensor in tensors.values())} bytes needed",
            remedy="Free disk space or lower weights.keep_versions.",
        )

    def _write(
        self,
        name: str,
        version: PolicyVersion,
        tensors: Mapping[str, npt.NDArray[Any]],
        digest: str,
        metadata: dict[str, str],
        adapter: AdapterRecord | None,
    ) -> None:
        manifest = Manifest(
            format=FORMAT,
            run_id=self._run_id,
            version=version,
            digest=digest,
            shards=(),
            metadata=metadata,
            adapter=adapter,
        )
        write_directory(self.path / name, manifest, tensors, self._settings)

    def _move_marker(self, version: PolicyVersion) -> None:
        if version == self._latest:
            return
        partial = self.path / f"{PARTIAL_PREFIX}{MARKER_FILE}"
        partial.unlink(missing_ok=True)
        write_file(partial, [msgspec.json.encode(Marker(version=version))], self._settings)
        partial.rename(self.path / MARKER_FILE)
        sync_directory(self.path, self._settings)
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
