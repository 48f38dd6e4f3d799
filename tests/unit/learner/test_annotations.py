from __future__ import annotations

import msgspec
import numpy as np

from forebay.batching.batch import Batch
from forebay.learner.annotations import write_array
from tests.unit.batching.records import answer, batch_of, group, trajectory


def batch(*lengths: int, name: str = "t") -> Batch:
    members = [trajectory(answer(length), reward=float(i), name=name) for i, length in enumerate(lengths)]
    return batch_of(group(*members))


class Scores:
    """Counts what it is asked, and numbers the answers."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, rows):
        self.asked.append(int(rows.loss_mask.sum()))
        return np.full(rows.tokens.shape, float(len(self.asked)), np.float32)


def written(updates: tuple[Batch, ...]) -> list[list[float]]:
    return [
        [float(micro.rows.reference_logprobs[0, 0]) for micro in update.micro_batches] for update in updates
    ]


def test_rows_that_come_again_in_a_later_epoch_are_scored_once() -> None:
    first, second, scores = batch(5, 7), batch(9, 4), Scores()
    updates = write_array((first, second, first, second), "reference_logprobs", scores)
    assert len(scores.asked) == 2
    assert written(updates) == [[1.0], [2.0], [1.0], [2.0]]
    assert first.micro_batches[0].rows.reference_logprobs is None  # what was packed stays as it was
    assert [update.digest for update in updates] == [first.digest, second.digest] * 2


def test_rows_of_an_epoch_in_which_less_is_fresh_are_scored_anew_only_if_their_tokens_differ() -> None:
    whole, scores = batch(5, 7), Scores()
    rows = whole.micro_batches[0].rows
    masked = rows.loss_mask.copy()
    masked[0, 1] = False
    shorter = rows.segment_ids.copy()
    shorter[0, -1] = 1 - shorter[0, -1]
    later = [
        msgspec.structs.replace(
            whole, micro_batches=(whole.micro_batches[0]._replace(rows=rows._replace(**changed)),)
        )
        for changed in ({"loss_mask": masked}, {"segment_ids": shorter})
    ]
    assert written(write_array((whole, *later), "reference_logprobs", scores)) == [[1.0], [1.0], [2.0]]


def test_an_update_without_a_fresh_token_is_not_scored() -> None:
    empty, scores = batch_of(group(trajectory(answer(5), reward=None))), Scores()
    assert empty.empty
    assert write_array((empty,), "reference_logprobs", scores) == (empty,)
    assert scores.asked == []
