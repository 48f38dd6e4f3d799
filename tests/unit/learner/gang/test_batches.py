from __future__ import annotations

import msgspec
import numpy as np
import pytest

from forebay.batching.rows import TrainRows
from forebay.errors import WireError
from forebay.learner.gang.batches import decode_batch, decode_rows, encode_batch, encode_rows
from tests.unit.learner import small_run


@pytest.fixture(scope="module")
def batch():
    store = small_run.open_at()
    store.rewind(0)
    made = small_run.ScriptedSource(store, 0, 0, 3).next()
    store.close()
    assert made is not None
    return made


def same_rows(one: TrainRows, other: TrainRows) -> bool:
    return all(
        (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def test_a_batch_comes_back_as_it_was_but_for_its_trajectories(batch) -> None:
    got = decode_batch(encode_batch(batch))
    assert got.entry == batch.entry
    assert got.groups == ()
    for update, expected in zip(got.updates, batch.updates, strict=True):
        for name in ("now", "group_ids", "counts", "denominator", "stats", "digest", "empty", "credit"):
            assert getattr(update, name) == getattr(expected, name), name
        for micro, other in zip(update.micro_batches, expected.micro_batches, strict=True):
            assert micro.bucket == other.bucket
            assert same_rows(micro.rows, other.rows)


def test_credit_of_a_critic_travels_too(batch) -> None:
    from forebay.batching.credit import Credit

    credit = Credit(np.array([1, 2]), np.array([2]), np.array([0.5, 1.0]), np.array([True]))
    update = msgspec.structs.replace(batch.updates[0], credit=credit)
    got = decode_batch(encode_batch(batch._replace(updates=(update,)))).updates[0].credit
    assert [array.tolist() for array in got.arrays()] == [[1, 2], [2], [0.5, 1.0], [True]]


def test_rows_come_back_by_their_shape_without_annotations(batch) -> None:
    micro = batch.updates[0].micro_batches[0]
    annotated = micro.rows._replace(reference_logprobs=np.zeros(micro.bucket, np.float32))
    got = decode_rows(encode_rows({micro.bucket: annotated}))
    assert list(got) == [micro.bucket]
    assert same_rows(got[micro.bucket], micro.rows)


def test_a_frame_with_other_arrays_than_it_names_is_refused(batch) -> None:
    frame = encode_batch(batch)
    for arrays in (frame.arrays[:-1], frame.arrays[::-1], (*frame.arrays, np.zeros(1, np.float32))):
        with pytest.raises(WireError):
            decode_batch(frame._replace(arrays=arrays))
