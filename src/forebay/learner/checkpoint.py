"""Checkpoints: parameters, optimizer, randomness and the journal's cursor, saved and restored as one.

The arrays are one safetensors file, written on the calling thread and hashed on the way; the manifest says
whether what is on the disk is what was in memory.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import msgspec
import numpy as np
import xxhash

from forebay.errors import CheckpointError, WeightsError
from forebay.learner.checkpoint_manifest import (
    FORMAT,
    PARTIAL_PREFIX,
    STATE_FILE,
    ArrayRecord,
    CheckpointCursor,
    CheckpointFile,
    CheckpointManifest,
    find_best,
    install,
    list_steps,
    read_manifest,
    retain,
    step_directory,
    sweep,
    verify,
    write_manifest,
)
from forebay.telemetry.faults import fault_point
from forebay.weights.shard import Tensors, decode, digest_of, encode

logger = logging.getLogger(__name__)

# Headers, the manifest and the file system's own blocks.
_OVERHEAD_BYTES = 64 * 2**10


class Restored(NamedTuple):
    """A restored checkpoint: the state, where it belongs, and why newer ones were skipped."""

    state: Any
    cursor: CheckpointCursor
    skipped: tuple[str, ...]


class Checkpointer:
    """Saves and restores the state of one learner.

    Args:
        path: The checkpoint directory; made if it is missing, swept of what a killed writer left.
        keep: Newest checkpoints kept; the best one is kept beside them.
        durability: `fsync` survives power loss; `os` survives kill -9 only.
        background: Write in a thread; worth it only where the learner leaves a core free.
        timeout_s: Longest wait for a save in the background.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int = 2,
        durability: Literal["fsync", "os"] = "fsync",
        background: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        self.path = path
        self._keep = keep
        self._fsync = durability == "fsync"
        self._timeout_s = timeout_s
        self._invalid: set[int] = set()
        self._executor = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future[None] | None = None
        path.mkdir(parents=True, exist_ok=True)
        sweep(path)

    def save(self, state: Any, cursor: CheckpointCursor, *, metric: float | None = None) -> None:
        """Save the state as the checkpoint of step `cursor.version.version`.

        In the background, the state is copied before the call returns, so that its buffers may be
        donated; at most one save is in flight, and an error of the last one surfaces here. Saving a step
        again with the same arrays only renews its cursor and metric.

        Args:
            state: Pytree of arrays; random keys as `jax.random.key_data`.
            cursor: Where the state belongs.
            metric: The evaluation's result, higher is better.

        Raises:
            CheckpointError: The disk is full or failed (the checkpoints that exist stay whole), or a
                leaf cannot be saved.
        """
        self.wait()
        tensors, digest = _to_host(state, copy=self._executor is not None)
        manifest = CheckpointManifest(
            format=FORMAT,
            cursor=cursor,
            metric=metric,
            arrays=_records_of(tensors.items()),
            digest=digest,
            files=(),
        )
        if self._executor is None:
            self._write(tensors, manifest)
        else:
            self._pending = self._executor.submit(self._write, tensors, manifest)

    def wait(self) -> None:
        """Wait for the save in flight, if any.

        Raises:
            CheckpointError: It failed, or did not end within `timeout_s`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise CheckpointError(
                f"saving to {self.path} does not end",
                limit=f"{self._timeout_s} s",
                remedy="Check the disk, or save in the foreground.",
            ) from error

    def restore_newest(self, template: Any | Callable[[CheckpointCursor], Any]) -> Restored | None:
        """Restore the newest checkpoint that is whole; warn of each newer one that is not.

        Args:
            template: Pytree of the arrays' shapes, dtypes and shardings, such as a fresh state; or what gives
                one for a place in the run.

        Returns:
            The state on the template's devices, or None if nothing was ever saved.

        Raises:
            CheckpointError: No checkpoint is whole, or the newest whole one does not fit the template.
        """
        self.wait()
        skipped: list[str] = []
        for step in reversed(list_steps(self.path)):
            directory = step_directory(self.path, step)
            try:
                manifest = verify(directory)
            except CheckpointError as error:
                logger.warning("skipped checkpoint %s: %s", directory.name, error)
                skipped.append(f"{directory.name}: {error}")
                self._invalid.add(step)
                continue
            return Restored(_read(directory, manifest, template), manifest.cursor, tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"no checkpoint in {self.path} is whole",
                got="; ".join(skipped),
                remedy="Restore the directory from a copy, or start a new run.",
            )
        return None

    def oldest_verified_step(self) -> int | None:
        """Return the step of the oldest checkpoint that a resume could need: the store may forget up to it.

        Every checkpoint was verified before it got its name; those found damaged since do not count.
        """
        steps = [step for step in list_steps(self.path) if step not in self._invalid]
        return next((step for step in steps if _has_manifest(step_directory(self.path, step))), None)

    def close(self) -> None:
        """Wait for the save in flight and end the thread.

        Raises:
            CheckpointError: The save failed.
        """
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def _write(self, tensors: Tensors, manifest: CheckpointManifest) -> None:
        step = manifest.cursor.version.version
        target = step_directory(self.path, step)
        partial = self.path / f"{PARTIAL_PREFIX}{target.name}"
        num_bytes = _OVERHEAD_BYTES + sum(tensor.nbytes for tensor in tensors.values())
        try:
            if not self._renew(target, manifest):
                self._refuse_full_disk(num_bytes)
                _write_checkpoint(partial, tensors, manifest, fsync=self._fsync)
                fault_point("checkpoint_written", step)
                install(partial, target, fsync=self._fsync)
                fault_point("checkpoint_installed", step)
            self._invalid.discard(step)
            retain(self.path, keep=self._keep, invalid=self._invalid)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            free_bytes = shutil.disk_usage(self.path).free
            raise CheckpointError(
                f"cannot save {target}: {error.strerror}",
                got=f"{free_bytes} bytes free",
                limit=f"{num_bytes} bytes needed",
                remedy="Free disk space or lower learner.keep_checkpoints; the older checkpoints are whole.",
            ) from error

    def _renew(self, target: Path, manifest: CheckpointManifest) -> bool:
        """Give a checkpoint of the same arrays a new cursor and metric; return whether there is one."""
        if not target.exists():
            return False
        try:
            existing = verify(target)
        except CheckpointError:
            return False
        if existing.digest != manifest.digest:
            return False
        metric = manifest.metric if manifest.metric is not None else existing.metric
        renewed = msgspec.structs.replace(manifest, files=existing.files, metric=metric)
        write_manifest(target, renewed, fsync=self._fsync)
        return True

    def _refuse_full_disk(self, num_bytes: int) -> None:
        if shutil.disk_usage(self.path).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def load_best(path: Path, template: Any | Callable[[CheckpointCursor], Any]) -> Restored:
    """Read the checkpoint with the highest metric; a learner may go on saving beside it.

    Args:
        path: The checkpoint directory.
        template: As for `Checkpointer.restore_newest`.

    Raises:
        CheckpointError: None was evaluated, or the best is damaged or does not fit the template.
    """
    directory = find_best(path)
    if directory is None:
        raise CheckpointError(f"no checkpoint in {path} was evaluated", remedy="Set learner.eval_every.")
    manifest = verify(directory)
    return Restored(_read(directory, manifest, template), manifest.cursor, ())


def _write_checkpoint(
    directory: Path, tensors: Tensors, manifest: CheckpointManifest, *, fsync: bool
) -> None:
    """Write a checkpoint, the manifest last, and read it back."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    digest = xxhash.xxh3_128()
    num_bytes = 0
    with (directory / STATE_FILE).open("xb") as file:
        for piece in encode(tensors):
            digest.update(piece)
            num_bytes += file.write(piece)
            fault_point("checkpoint_writing", manifest.cursor.version.version)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    state_file = CheckpointFile(path=STATE_FILE, num_bytes=num_bytes, xxh3=digest.hexdigest())
    write_manifest(directory, msgspec.structs.replace(manifest, files=(state_file,)), fsync=fsync)
    verify(directory)


def _read(directory: Path, manifest: CheckpointManifest, template: Any) -> Any:
    if callable(template):
        template = template(manifest.cursor)
    _refuse_other_shape(directory, manifest, template)
    source = directory / STATE_FILE
    try:
        tensors = decode(np.fromfile(source, np.uint8), str(source))
    except (OSError, WeightsError) as error:
        raise CheckpointError(f"{directory} cannot be restored: {error}") from error
    if digest_of(tensors) != manifest.digest:
        raise CheckpointError(f"{directory} does not hold the arrays that were saved")
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _place(tensors[jax.tree_util.keystr(path)], leaf), template
    )


def _place(array: np.ndarray, template: Any) -> Any:
    sharding = getattr(template, "sharding", None)
    # A copy of its own: the first step donates it.
    return np.array(array) if sharding is None else jax.device_put(array, sharding, may_alias=False)


def _refuse_other_shape(directory: Path, manifest: CheckpointManifest, template: Any) -> None:
    saved = {record.path: record for record in manifest.arrays}
    wanted = {record.path: record for record in _records_of(_named_leaves(template))}
    for path in sorted(saved.keys() | wanted.keys()):
        if saved.get(path) != wanted.get(path):
            raise CheckpointError(
                f"{directory} was saved by another model or optimizer: {path} differs",
                got=_describe(saved.get(path)),
                limit=_describe(wanted.get(path)),
                remedy="Resume with the run's own configuration.",
            )


def _describe(record: ArrayRecord | None) -> str:
    return "nothing" if record is None else f"{record.dtype}{list(record.shape)}"


def _to_host(state: Any, *, copy: bool) -> tuple[Tensors, str]:
    """Return the arrays by their path in the tree, and their digest."""
    for path, leaf in _named_leaves(state):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended):
            raise CheckpointError(
                f"state{path} cannot be saved",
                got=f"{type(leaf).__name__} {dtype}",
                limit="arrays of numbers",
                remedy="Keep random keys as jax.random.key_data(key).",
            )
    host = jax.device_get(state)
    tensors = {path: np.array(leaf, copy=copy or None) for path, leaf in _named_leaves(host)}
    try:
        return tensors, digest_of(tensors)
    except WeightsError as error:
        raise CheckpointError(f"the state cannot be saved: {error}") from error


def _records_of(leaves: Iterable[tuple[str, Any]]) -> tuple[ArrayRecord, ...]:
    return tuple(
        ArrayRecord(path=path, shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for path, leaf in leaves
    )


def _named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def _has_manifest(directory: Path) -> bool:
    try:
        read_manifest(directory)
    except CheckpointError:
        return False
    return True
