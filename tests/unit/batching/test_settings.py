from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from forebay.batching.settings import BatchingSettings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 0}, "greater than or equal to 1"),
        ({"group_size": 1, "min_group_size": 2}, r"exceeds the group \(got 2, limit 1\)"),
        ({"group_size": 4, "min_group_size": 5}, r"exceeds the group \(got 5, limit 4\)"),
        ({"groups": 8, "minibatches": 3}, r"8 groups in 3 minibatches, limit minibatches in \[1, 2, 4, 8\]"),
        ({"max_length": 512, "row_length": 256}, r"fits no row \(got max_length=512, limit 256"),
        ({"max_length": 512, "buckets": ((4, 256),)}, r"fits no row"),
        ({"max_length": 8, "min_row_length": 16}, r"exceeds the longest row"),
        ({"max_length": 16, "buckets": ((0, 16),)}, r"at least 1 row"),
        ({"max_length": 16, "buckets": ((1, 16), (2, 16)), "max_programs": 1}, r"more shapes than programs"),
        ({"oversize": "ignore"}, "'error', 'drop' or 'truncate'"),
        ({"grops": 8}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_settings_are_refused_with_the_arithmetic(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BatchingSettings(**changes)


def test_a_group_of_one_waits_for_nobody() -> None:
    assert BatchingSettings(group_size=1).min_group_size == 1
    assert BatchingSettings(group_size=3).min_group_size == 2


def test_what_follows_from_the_settings() -> None:
    settings = BatchingSettings(groups=8, minibatches=4, epochs=2, max_length=100)
    assert (settings.updates_per_batch, settings.packed_length) == (8, 100)
    assert BatchingSettings(max_length=100, row_length=300).packed_length == 300


@pytest.mark.parametrize(("groups", "minibatches", "divisors"), [(7, 8, r"\[1, 7\]"), (1, 2, r"\[1\]")])
def test_c70_the_message_lists_what_divides(groups: int, minibatches: int, divisors: str) -> None:
    # A batch is whole groups, so that only minibatches can leave a rest.
    with pytest.raises(ValidationError, match=rf"{groups} groups in .*limit minibatches in {divisors}"):
        BatchingSettings(groups=groups, minibatches=minibatches)
