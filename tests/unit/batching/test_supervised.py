from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.batching.batch import Batch
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.supervised import Demonstration, build_supervised_batch, shuffled_batches
from forebay.errors import ConfigError, RecordError
from tests.unit.batching.records import EXPECTED, flat, token_mean, v


def demonstration(tokens: list[int], mask: list[int], name: str = "d") -> Demonstration:
    return Demonstration(name=name, tokens=np.array(tokens, np.int32), loss_mask=np.array(mask, np.bool_))


def batch_of(*demonstrations: Demonstration, **settings: Any) -> Batch:
    batching = BatchingSettings(**({"max_length": 32, "rows": 1} | settings))
    return build_supervised_batch(
        demonstrations,
        now=v(0),
        settings=batching,
        ladder=build_ladder(batching),
        denominator=token_mean,
    )


def test_c06_the_supervised_mask_is_aligned_to_the_targets() -> None:
    case = EXPECTED["C06"]
    batch = batch_of(demonstration(case["input"]["ids"], case["expect"]["target_mask"]))
    rows = flat(batch)
    assert rows.loss_mask[:5].tolist() == [False, False, False, True, True]
    assert rows.advantages[rows.loss_mask].tolist() == [1.0, 1.0]
    assert not rows.behavior_logprobs.any()
    assert rows.temperature[:5].tolist() == [1.0] * 5
    assert (batch.counts, batch.denominator) == ((2, 1), 2.0)


def test_the_first_token_is_no_target_and_the_tail_is_not_packed() -> None:
    batch = batch_of(demonstration([1, 2, 3, 4], [1, 1, 0, 0]), demonstration([5, 6], [1, 0]))
    assert (batch.counts, batch.stats.real_tokens) == ((1, 1), 2)
    assert batch.stats.discarded == 0
    assert batch_of(demonstration([5, 6], [0, 0])).empty


def test_c46_too_long_demonstrations() -> None:
    long = demonstration(list(range(40)), [0] + [1] * 39, name="long")
    short = demonstration([1, 2], [0, 1])
    with pytest.raises(ConfigError, match=r"1 of 2 demonstrations .*got up to 40 tokens, limit 32"):
        batch_of(short, long)
    dropped = batch_of(short, long, oversize="drop")
    assert (dropped.counts.tokens, dropped.stats.too_long, dropped.stats.discarded) == (1, ("long",), 1)
    assert dropped.stats.masked_tokens == {"too_long": 39}
    cut = batch_of(short, long, oversize="truncate")
    assert (cut.counts.tokens, cut.stats.real_tokens, cut.stats.discarded) == (32, 34, 0)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(RecordError, match="one mask value per token"):
        demonstration([1, 2, 3], [0, 1])


def test_every_demonstration_is_shown_once_per_epoch_in_a_seeded_order() -> None:
    demonstrations = [demonstration([i] * 10, [0] + [1] * 9, name=f"d{i}") for i in range(7)]

    def names(seed: int) -> list[list[str]]:
        steps = shuffled_batches(demonstrations, epochs=2, batch_tokens=30, seed=seed)
        return [[d.name for d in step] for step in steps]

    steps = names(0)
    assert [len(step) for step in steps] == [3, 3, 1] * 2
    for epoch in (steps[:3], steps[3:]):
        assert sorted(name for step in epoch for name in step) == [f"d{i}" for i in range(7)]
    assert steps[:3] != steps[3:]
    assert names(0) == steps != names(1)
