"""Batches as frames: what process 0 packed, for the others to train exactly that."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.batching.batch import Batch, MicroBatch
from forebay.batching.credit import Credit
from forebay.batching.packing import Bucket
from forebay.batching.rows import ANNOTATIONS, ROW_DTYPES, TrainRows
from forebay.batching.stats import BatchStats
from forebay.errors import WireError
from forebay.learner.feed import JournaledBatch
from forebay.learner.gang.frames import Frame
from forebay.objectives.denominators import FreshCounts
from forebay.store.protocol import JournalEntry
from forebay.trajectory import PolicyVersion

BATCH = "batch"
ROWS = "rows"
_FIELDS = tuple(name for name in TrainRows._fields if name not in ANNOTATIONS)
_CREDIT_DTYPES = (np.int64, np.int64, np.float64, np.bool_)
Arrays = tuple[npt.NDArray[Any], ...]


class _Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One update without its arrays."""

    now: PolicyVersion
    group_ids: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    counts: FreshCounts
    denominator: float
    stats: BatchStats
    digest: str
    has_credit: bool


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: JournalEntry
    updates: tuple[_Update, ...]


def encode_batch(batch: JournaledBatch) -> Frame:
    """Return the frame of a batch that nobody has annotated yet; its trajectories stay at home."""
    updates = []
    arrays: list[npt.NDArray[Any]] = []
    for update in batch.updates:
        updates.append(
            _Update(
                now=update.now,
                group_ids=update.group_ids,
                buckets=tuple(micro.bucket for micro in update.micro_batches),
                counts=update.counts,
                denominator=update.denominator,
                stats=update.stats,
                digest=update.digest,
                has_credit=update.credit is not None,
            )
        )
        for micro in update.micro_batches:
            arrays += _row_arrays(micro.rows)
        if update.credit is not None:
            arrays += [
                np.asarray(array, dtype)
                for array, dtype in zip(update.credit.arrays(), _CREDIT_DTYPES, strict=True)
            ]
    return Frame(BATCH, msgspec.json.encode(_Batch(batch.entry, tuple(updates))), tuple(arrays))


def decode_batch(frame: Frame) -> JournaledBatch:
    """Return the batch of a frame, without its groups.

    Raises:
        WireError: The arrays are not those that the body names.
    """
    body = msgspec.json.decode(frame.body, type=_Batch)
    arrays = list(frame.arrays)
    updates = tuple(_update(update, arrays) for update in body.updates)
    if arrays:
        raise WireError("arrays", "a batch has more arrays than it names", got=len(arrays))
    return JournaledBatch(body.entry, updates, ())


def encode_rows(rows: dict[Bucket, TrainRows]) -> Frame:
    """Return the frame of rows by their shape; annotations are left out."""
    arrays = [array for one in rows.values() for array in _row_arrays(one)]
    return Frame(ROWS, msgspec.json.encode(tuple(rows)), tuple(arrays))


def decode_rows(frame: Frame) -> dict[Bucket, TrainRows]:
    """Return the rows of a frame by their shape.

    Raises:
        WireError: The arrays are not those that the body names.
    """
    arrays = list(frame.arrays)
    buckets = msgspec.json.decode(frame.body, type=tuple[Bucket, ...])
    return {bucket: _rows(bucket, arrays) for bucket in buckets}


def _row_arrays(rows: TrainRows) -> list[npt.NDArray[Any]]:
    return [np.asarray(getattr(rows, name)) for name in _FIELDS]


def _update(update: _Update, arrays: list[npt.NDArray[Any]]) -> Batch:
    micro_batches = tuple(MicroBatch(bucket, _rows(bucket, arrays)) for bucket in update.buckets)
    credit = Credit(*(_next(arrays, dtype) for dtype in _CREDIT_DTYPES)) if update.has_credit else None
    return Batch(
        now=update.now,
        group_ids=update.group_ids,
        micro_batches=micro_batches,
        counts=update.counts,
        denominator=update.denominator,
        stats=update.stats,
        digest=update.digest,
        credit=credit,
    )


def _rows(bucket: Bucket, arrays: list[npt.NDArray[Any]]) -> TrainRows:
    return TrainRows(*(_next(arrays, getattr(ROW_DTYPES, name), bucket) for name in _FIELDS))


def _next(
    arrays: list[npt.NDArray[Any]], dtype: Any, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    if not arrays or arrays[0].dtype != dtype or (shape is not None and arrays[0].shape != tuple(shape)):
        raise WireError(
            "arrays",
            "a batch lacks an array, or has another one in its place",
            got=arrays and f"{arrays[0].dtype}{list(arrays[0].shape)}",
            limit=f"{np.dtype(dtype)}{'' if shape is None else list(shape)}",
        )
    return arrays.pop(0)
