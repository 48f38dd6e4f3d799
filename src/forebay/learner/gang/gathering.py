"""Parameters on the devices of several processes, brought together in the host memory of process 0."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import msgspec
import numpy as np

from forebay.errors import WireError
from forebay.learner.checkpoint_slices import HostArray, StateSlice, take_slices
from forebay.learner.gang.frames import Frame
from forebay.learner.gang.gang import Gang

_TOPIC = "slice"
_NEXT = "next slice"


class _Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    start: tuple[int, ...]


class Gathering:
    """Gathers parameters beside the training thread, one version at a time, slice by slice.

    A process that does not lead holds its own slices in host memory until they are sent; process 0 holds the
    whole parameters, and at most two slices of each other process: it asks for the next one when it has one.
    No device memory and no program is used.

    Args:
        gang: The processes.
        abstract: Shapes and types of the parameters.
        on_start: Runs first in the thread.
    """

    def __init__(self, gang: Gang, abstract: Any, on_start: Callable[[], None] = lambda: None) -> None:
        self._gang = gang
        self._abstract = abstract
        self._executor = ThreadPoolExecutor(1, "gather", initializer=on_start)
        self._pending: Future[Any] | None = None

    def start(self, params: Any) -> Future[Any]:
        """Begin with the parameters that all processes have now; they may be donated as soon as this returns.

        Waits for the version before. Every process calls it, in the same order.

        Returns:
            At process 0 a future of the tree of NumPy arrays; elsewhere one of None.
        """
        if self._pending is not None:
            self._pending.result()
        slices = take_slices(params, copy=True, first_process=self._gang.process == 0)
        gather = self._collect if self._gang.process == 0 else self._give
        self._pending = self._executor.submit(gather, slices)
        return self._pending

    def check(self) -> None:
        """Raise what the last gathering failed with, if it did; never wait."""
        if self._pending is not None and self._pending.done():
            self._pending.result()

    def close(self) -> None:
        """Wait for what is under way, and end the thread."""
        self._executor.shutdown(wait=True)

    def _give(self, slices: tuple[StateSlice, ...]) -> None:
        for one in slices:
            self._gang.tell(Frame(_TOPIC, msgspec.json.encode(_Slice(one.path, one.start)), (one.array,)))
            self._gang.hear(_NEXT)
        self._gang.tell(Frame(_TOPIC))

    def _collect(self, slices: tuple[StateSlice, ...]) -> Any:
        leaves = jax.tree_util.tree_leaves_with_path(self._abstract)
        whole = {
            jax.tree_util.keystr(path): np.empty(leaf.shape, np.dtype(leaf.dtype)) for path, leaf in leaves
        }
        held = sum(_write(whole, one.path, one.start, one.array) for one in slices)
        for process in range(1, self._gang.num_processes):
            while (frame := self._gang.hear(_TOPIC, process)).body:
                self._gang.send(Frame(_NEXT), process)
                place = msgspec.json.decode(frame.body, type=_Slice)
                held += _write(whole, place.path, place.start, frame.arrays[0])
        if held != sum(array.size for array in whole.values()):
            raise WireError("slices", "the slices of all processes do not make up the parameters", got=held)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: whole[jax.tree_util.keystr(path)], self._abstract
        )


def _write(whole: dict[str, HostArray], path: str, start: tuple[int, ...], part: HostArray) -> int:
    target = whole.get(path)
    if target is None or len(start) != target.ndim or part.ndim != target.ndim or part.dtype != target.dtype:
        raise WireError("slice", "a slice fits no parameter", got=path)
    box = tuple(slice(first, first + length) for first, length in zip(start, part.shape, strict=True))
    if target[box].shape != part.shape:
        raise WireError("slice", "a slice reaches beyond its parameter", got=f"{path} from {start}")
    target[box] = part
    return int(part.size)
