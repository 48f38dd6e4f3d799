from __future__ import annotations

import numpy as np
import pytest

from forebay.objectives import ObjectiveSettings, batch_denominator, count_fresh
from forebay.objectives.denominators import FreshCounts

MASK = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=bool)
SEGMENTS = np.array([[1, 1, 2, 3, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 2]], dtype=np.int32)


def test_sequences_without_fresh_tokens_are_not_counted() -> None:
    assert count_fresh(MASK, SEGMENTS) == FreshCounts(tokens=6, sequences=3)


def test_counts_of_parts_add_up() -> None:
    parts = [count_fresh(MASK[i : i + 1], SEGMENTS[i : i + 1]) for i in range(3)]
    assert [sum(values) for values in zip(*parts, strict=True)] == [6, 3]


@pytest.mark.parametrize(
    ("choice", "full", "empty"),
    [
        ({"reduction": "token"}, 6.0, 1.0),
        ({"reduction": "sequence"}, 3.0, 1.0),
        ({"reduction": "constant", "constant_tokens": 7}, 21.0, 7.0),
    ],
)
def test_denominator_by_reduction(choice: dict[str, object], full: float, empty: float) -> None:
    settings = ObjectiveSettings(**choice)
    assert batch_denominator(settings, count_fresh(MASK, SEGMENTS)) == full
    assert batch_denominator(settings, count_fresh(np.zeros_like(MASK), SEGMENTS)) == empty
