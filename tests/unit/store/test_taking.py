"""How long a learner that waits leaves the processor to others."""

from __future__ import annotations

import pytest

from forebay.store.taking import first_pause_s


@pytest.mark.parametrize(
    ("look_s", "expected_s"), [(0.0, 0.002), (0.0004, 0.002), (0.001, 0.004), (0.005, 0.02), (1.0, 0.025)]
)
def test_a_long_look_is_followed_by_a_longer_pause(look_s: float, expected_s: float) -> None:
    assert first_pause_s(look_s) == pytest.approx(expected_s)
