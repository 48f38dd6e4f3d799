"""What the bare step is timed on; how long it takes is not asserted."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from forebay.batching.packing import Bucket
from forebay.learner.bare import BareSpeed, BareWork, full_rows, full_rows_like, work_of
from forebay.learner.timing import Length, made_up_batch
from tests.unit.learner import small_run
from tests.unit.learner.test_timing import BUCKET, LENGTHS, pack
from tests.unit.models import tiny


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


def test_a_slow_moment_does_not_pass_for_the_speed_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bare, rows = BareSpeed(), {bucket: full_rows(bucket, 4) for bucket in small_run.LADDER}
    built, ticks = small_run.programs(), itertools.count()
    work = BareWork()
    work.updates = 1.0
    found = []
    for seconds in (2.0, 7.0, 1.0):
        monkeypatch.setattr(time, "perf_counter", lambda seconds=seconds: seconds * next(ticks))
        bare.calibrate(built, built.init_state(tiny.params()), rows)
        found.append(bare.seconds(work))
    assert found == [2.0, 2.0, 1.0]
