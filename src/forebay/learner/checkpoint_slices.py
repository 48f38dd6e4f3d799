"""Arrays of a checkpoint as the slices that devices held, and arrays on other devices made of them again.

A slice knows its place in the whole array, so that a state that was saved on one mesh, by some number of
processes, is restored on any other: each process reads only the slices that its own devices need parts of.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import CheckpointError, WeightsError
from forebay.learner.checkpoint_manifest import ArrayRecord, CheckpointManifest, SliceRecord
from forebay.learner.checkpoint_shelf import Folder
from forebay.weights.shard import TensorPlace, Tensors, bytes_of, dtype_name, read_places

HostArray = npt.NDArray[Any]
# (first, behind the last) index along each axis.
Box = tuple[tuple[int, int], ...]


class StateSlice(NamedTuple):
    """A part of an array of the state in host memory, and where in the whole array it begins."""

    path: str
    start: tuple[int, ...]
    array: HostArray
    whole_shape: tuple[int, ...]

    @property
    def tensor(self) -> str:
        """Name of the tensor in its file."""
        if self.array.shape == self.whole_shape:
            return self.path
        spans = (
            f"{first}:{first + length}" for first, length in zip(self.start, self.array.shape, strict=True)
        )
        return f"{self.path}[{','.join(spans)}]"


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree by their path in it."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def records_of(state: Any) -> tuple[ArrayRecord, ...]:
    """Return path, shape and type of every array of a state or of its template."""
    return tuple(
        ArrayRecord(path=path, shape=tuple(leaf.shape), dtype=str(leaf.dtype))
        for path, leaf in named_leaves(state)
    )


def take_slices(state: Any, *, copy: bool, first_process: bool = True) -> tuple[StateSlice, ...]:
    """Copy to host memory what this process saves of a state: of every slice, one of its replicas.

    All copies to the host are under way before the first is waited for.

    Args:
        state: Pytree of arrays; random keys as `jax.random.key_data`.
        copy: Whether the slices must outlive the buffers of the state, which may share memory with the host.
        first_process: Whether this process saves arrays that every process holds for itself.

    Raises:
        CheckpointError: A leaf cannot be saved.
    """
    leaves = list(named_leaves(state))
    for path, leaf in leaves:
        _refuse_unsavable(path, leaf)
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    return tuple(
        StateSlice(path, start, array, tuple(leaf.shape))
        for path, leaf in leaves
        for start, array in _held_slices(leaf, copy, first_process)
    )


def slice_records(slices: Iterable[StateSlice], file: str) -> tuple[SliceRecord, ...]:
    """Return what a manifest says of slices that one file holds."""
    return tuple(
        SliceRecord(
            array=one.path,
            start=one.start,
            shape=one.array.shape,
            file=file,
            tensor=one.tensor,
            xxh3=xxhash.xxh3_128_hexdigest(bytes_of(one.array)),
        )
        for one in slices
    )


def tensors_of(slices: Iterable[StateSlice]) -> Tensors:
    """Return slices as the tensors of their file."""
    return {one.tensor: one.array for one in slices}


def content_digest(arrays: Iterable[ArrayRecord], slices: Iterable[SliceRecord]) -> str:
    """Return the hash of a state: of its arrays, of the way they are cut, and of every slice's bytes."""
    digest = xxhash.xxh3_128()
    for array in sorted(arrays, key=lambda record: record.path):
        digest.update(f"{array.path}\0{array.dtype}\0{list(array.shape)}\0".encode())
    for part in sorted(slices, key=lambda record: (record.array, record.start)):
        digest.update(f"{part.array}\0{list(part.start)}\0{list(part.shape)}\0{part.xxh3}\0".encode())
    return digest.hexdigest()


class SliceReader:
    """Makes arrays of the slices of one checkpoint.

    At most one slice and this process's part of one array are in host memory at a time; of a bucket, only
    the slices that are needed are fetched.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.

    Raises:
        CheckpointError: The slices do not make up the arrays.
    """

    def __init__(self, folder: Folder, manifest: CheckpointManifest) -> None:
        self._folder = folder
        self._files: dict[str, dict[str, TensorPlace]] = {}
        self._slices: defaultdict[str, list[SliceRecord]] = defaultdict(list)
        for part in manifest.slices:
            self._slices[part.array].append(part)
        for array in manifest.arrays:
            _refuse_holes(folder, array, self._slices[array.path])

    def read(self, path: str, template: Any) -> Any:
        """Return one array.

        Args:
            path: Its path in the tree.
            template: Its shape, dtype and sharding; without a sharding, a NumPy array is made.

        Raises:
            CheckpointError: A slice is damaged.
        """
        shape, dtype = tuple(template.shape), np.dtype(template.dtype)
        sharding = getattr(template, "sharding", None)
        if sharding is None:
            whole: Box = tuple((0, length) for length in shape)
            return self._fill(path, dtype, {whole})[whole]
        boxes = {
            device: _box(index, shape)
            for device, index in sharding.addressable_devices_indices_map(shape).items()
        }
        filled = self._fill(path, dtype, set(boxes.values()))
        # A copy of its own for each device: the first step donates it.
        placed = [jax.device_put(filled[box], device, may_alias=False) for device, box in boxes.items()]
        return jax.make_array_from_single_device_arrays(shape, sharding, placed)

    def _fill(self, path: str, dtype: np.dtype[Any], boxes: set[Box]) -> dict[Box, HostArray]:
        filled = {box: np.empty([stop - first for first, stop in box], dtype) for box in boxes}
        for part in self._slices[path]:
            source_box = tuple((first, first + n) for first, n in zip(part.start, part.shape, strict=True))
            overlaps = {box: _overlap(box, source_box) for box in boxes}
            if all(overlap is None for overlap in overlaps.values()):
                continue
            source = self._read(part, dtype)
            for box, overlap in overlaps.items():
                if overlap is not None:
                    filled[box][_within(overlap, box)] = source[_within(overlap, source_box)]
        return filled

    def _read(self, part: SliceRecord, dtype: np.dtype[Any]) -> HostArray:
        place = self._places(part.file).get(part.tensor)
        if place is None or place.shape != part.shape or place.dtype != dtype:
            raise CheckpointError(f"{self._folder} cannot be restored: {part.tensor} is not in {part.file}")
        data = self._folder.read(part.file, place.start, place.stop)
        if xxhash.xxh3_128_hexdigest(data.data) != part.xxh3:
            raise CheckpointError(f"{self._folder} does not hold the arrays that were saved", got=part.tensor)
        return place.view(data)

    def _places(self, file: str) -> dict[str, TensorPlace]:
        if file not in self._files:
            folder = self._folder
            try:
                self._files[file] = read_places(
                    lambda start, stop: folder.read(file, start, stop),
                    folder.num_bytes(file),
                    f"{folder}/{file}",
                )
            except (OSError, ValueError, WeightsError) as error:
                raise CheckpointError(f"{folder} cannot be restored: {error}") from error
        return self._files[file]


def _held_slices(leaf: Any, copy: bool, first_process: bool) -> Iterator[tuple[tuple[int, ...], HostArray]]:
    everywhere = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if everywhere and not first_process:
        return
    if not isinstance(leaf, jax.Array):
        yield (0,) * np.ndim(leaf), np.array(leaf, copy=copy or None)
        return
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            start = tuple(first for first, _ in _box(shard.index, leaf.shape))
            # Only the memory of a CPU device is the host's own.
            shared = copy and shard.device.platform == "cpu"
            yield start, np.array(shard.data, copy=shared or None)


def _refuse_unsavable(path: str, leaf: Any) -> None:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        raise CheckpointError(
            f"state{path} cannot be saved",
            got=f"{type(leaf).__name__} {dtype}",
            limit="arrays of numbers",
            remedy="Keep random keys as jax.random.key_data(key).",
        )
    try:
        dtype_name(path, np.empty(0, dtype))
    except WeightsError as error:
        raise CheckpointError(f"the state cannot be saved: {error}") from error


def _refuse_holes(folder: Folder, array: ArrayRecord, parts: Sequence[SliceRecord]) -> None:
    """Refuse slices of an array that leave an element out, or hold one twice."""
    boxes = [tuple((first, first + n) for first, n in zip(p.start, p.shape, strict=True)) for p in parts]
    whole: Box = tuple((0, length) for length in array.shape)
    inside = all(len(box) == len(whole) and _overlap(box, whole) in (box, None) for box in boxes)
    twice = any(_overlap(box, other) for number, box in enumerate(boxes) for other in boxes[:number])
    held = sum(math.prod(p.shape) for p in parts)
    if not inside or twice or held != math.prod(array.shape):
        raise CheckpointError(
            f"the slices of {array.path} in {folder} do not make up the array",
            got=f"{held} elements in {len(parts)} slices",
            limit=f"each of the {math.prod(array.shape)} elements once",
        )


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    return tuple(
        (span.start or 0, length if span.stop is None else span.stop)
        for span, length in zip(index, shape, strict=True)
    )


def _overlap(a: Box, b: Box) -> Box | None:
    """Return what two boxes share; None if that is nothing."""
    shared = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return shared if all(first < stop for first, stop in shared) else None


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(
        slice(first - origin, stop - origin) for (first, stop), (origin, _) in zip(box, outer, strict=True)
    )
