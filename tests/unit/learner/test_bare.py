"""What the bare step is timed on; how long it takes is not asserted."""

from __future__ import annotations

import numpy as np

from forebay.batching.packing import Bucket
from forebay.learner.bare import full_rows_like, work_of
from forebay.learner.timing import Length, made_up_batch
from tests.unit.learner.test_timing import BUCKET, LENGTHS, pack


def test_a_bare_step_is_timed_on_full_rows_like_those_of_the_batch() -> None:
    (update,) = made_up_batch(pack, LENGTHS, 3, 50).updates
    rows = full_rows_like(update)[BUCKET]
    assert rows.tokens.shape == BUCKET and rows.segment_ids.min() == 1
    mean = (10 + 20 + 7) // 3
    assert (np.count_nonzero(rows.positions == 0, axis=1) == -(-BUCKET.length // mean)).all()
    assert rows.positions.max() == mean - 1


def test_padding_of_a_batch_is_no_useful_work() -> None:
    """All of its tokens over the slots of a call: what lies between is not in it."""
    (update,) = made_up_batch(pack, LENGTHS, 3, 50).updates
    assert work_of(update).calls == {BUCKET: 2 * (10 + 20 + 7) / BUCKET.slots}
    (small,) = made_up_batch(pack, [Length(2, 1)] * 6, 3, 50).updates
    assert set(full_rows_like(small)) == {Bucket(*BUCKET)}
    assert full_rows_like(small)[BUCKET].segment_ids.min() == 1
