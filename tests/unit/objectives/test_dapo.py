from __future__ import annotations

import math

import pytest

from forebay.objectives.dapo import has_signal


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([0.1] * 7, False),
        ([0.1, 0.1, 0.2], True),
        ([1.0, None, math.nan], False),
        ([None, None], False),
        ([None, 1.0, -1.0], True),
    ],
)
def test_only_scores_that_differ_are_a_signal(rewards: list[float | None], signal: bool) -> None:
    assert has_signal(rewards) is signal
