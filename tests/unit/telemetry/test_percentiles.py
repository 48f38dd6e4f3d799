from __future__ import annotations

import numpy as np
import pytest

from forebay.telemetry.percentiles import latency_values, length_values, percentile


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("size", [1, 2, 19, 100, 101])
def test_percentiles_are_the_nearest_ranks(size: int, fraction: float) -> None:
    values = np.random.default_rng(size).exponential(size=size)
    exact = np.quantile(values, fraction, method="inverted_cdf")
    assert percentile(values.tolist(), fraction) == exact


def test_names_say_what_they_hold() -> None:
    assert latency_values("wait_s", [2.0, 1.0]) == {
        "wait_s.p50": 1.0, "wait_s.p95": 2.0, "wait_s.p99": 2.0, "wait_s.max": 2.0,
    }  # fmt: skip
    assert length_values("lengths", [1, 2, 6])["lengths.mean"] == 3.0
    assert latency_values("wait_s", []) == {}
    assert length_values("lengths", []) == {}
