"""Where ratios are clipped is decided by all trained tokens of an update, wherever they lie."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from forebay.batching.batch import Batch
from forebay.learner.clip_bounds import ClipBounds
from forebay.objectives.bapo import FloatArray
from forebay.trajectory import PolicyVersion
from tests.unit.batching.records import answer, batch_of, flat, group, trajectory


class Recorded:
    """A rule that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[list[float], list[float]]] = []

    def __call__(self, log_ratios: FloatArray, advantages: FloatArray) -> tuple[float, float]:
        assert log_ratios.dtype == advantages.dtype == np.float64
        self.shown.append((sorted(log_ratios.tolist()), sorted(advantages.tolist())))
        return 0.5, 3.0


def moved(batch: Batch, lost: bool = False) -> Batch:
    """Return a batch whose policy has become 0.25 nats likelier to sample what was sampled, or 99 nats."""
    micro_batches = []
    for number, micro in enumerate(batch.micro_batches):
        behavior = np.full(micro.rows.tokens.shape, np.nan if lost else -1.0, np.float32)
        current = np.full_like(behavior, 98.0 if number else -0.75)
        rows = micro.rows._replace(behavior_logprobs=behavior, proximal_logprobs=current)
        micro_batches.append(micro._replace(rows=rows))
    return msgspec.structs.replace(batch, micro_batches=tuple(micro_batches))


def batch(rows: int) -> Batch:
    members = [trajectory(answer(12), reward=float(i), name="t") for i in range(3)]
    return moved(batch_of(group(*members), rows=rows, max_length=16))


def test_all_micro_batches_decide_together_and_each_token_gets_the_bound_of_its_side() -> None:
    rule = Recorded()
    split = batch(rows=1)
    assert len(split.micro_batches) > 1
    (bounded,) = ClipBounds(rule).annotate(None, (split,))
    ((log_ratios, advantages),) = rule.shown
    assert len(log_ratios) == split.counts.tokens
    # What leaves the clamp is cut to it.
    assert set(log_ratios) == {0.25, 20.0}
    assert set(advantages) == {-1.0, 0.0, 1.0}
    rows = flat(bounded)
    assert rows.ratio_bounds.dtype == np.float32
    np.testing.assert_array_equal(rows.ratio_bounds, np.where(rows.advantages < 0, 0.5, 3.0))
    assert split.micro_batches[0].rows.ratio_bounds is None  # what was packed stays as it was


def test_a_lost_logprob_counts_as_one_that_has_not_moved() -> None:
    rule = Recorded()
    ClipBounds(rule).annotate(None, (moved(batch(rows=1), lost=True),))
    assert set(rule.shown[0][0]) == {0.0}


def test_every_update_decides_for_itself_and_an_empty_one_not_at_all() -> None:
    rule = Recorded()
    empty = batch_of(group(trajectory(answer(5), reward=None)))
    one, other = (
        batch(rows=1),
        moved(batch_of(group(trajectory(answer(3)), trajectory(answer(4), reward=0.0)))),
    )
    annotator = ClipBounds(rule)
    bounded = annotator.annotate(None, (one, empty, other))
    assert [len(shown) for shown, _ in rule.shown] == [one.counts.tokens, other.counts.tokens]
    assert bounded[1] is empty
    annotator.trained(None, PolicyVersion(0, 1))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_bounds_do_not_depend_on_how_an_update_is_split(rows: int) -> None:
    rules = Recorded(), Recorded()
    for rule, made in zip(rules, (batch(rows=1), batch(rows=rows)), strict=True):
        same = tuple(
            micro._replace(
                rows=micro.rows._replace(
                    proximal_logprobs=np.where(micro.rows.advantages < 0, -1.5, -0.5).astype(np.float32)
                )
            )
            for micro in made.micro_batches
        )
        ClipBounds(rule).annotate(None, (msgspec.structs.replace(made, micro_batches=same),))
    assert rules[0].shown == rules[1].shown
