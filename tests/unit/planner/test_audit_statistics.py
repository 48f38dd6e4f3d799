from __future__ import annotations

import itertools
import math

import pytest

from forebay.planner.audit_records import Call
from forebay.planner.audit_statistics import find_knee, mean_estimate, slice_rates, tail_index


def test_a_call_counts_in_every_slice_by_its_part_there() -> None:
    assert slice_rates([Call("step", 0.0, 10.0, True)], 10.0) == pytest.approx([0.1] * 4)
    late = [Call("step", 6.0, 14.0, True)]
    assert slice_rates(late, 10.0) == pytest.approx([0.0, 0.0, 0.125, 0.125])


def test_calls_that_take_no_time_count_once() -> None:
    calls = [Call("reset", at_s, at_s, True) for at_s in (0.5, 10.5, 10.6, 10.9)]
    assert slice_rates(calls, 11.0) == pytest.approx([0.0] * 9 + [3.0])


def test_an_empty_window_has_no_rate() -> None:
    assert slice_rates([Call("step", 0.0, 1.0, True)], 0.0) == []
    assert slice_rates([], 5.0) == [0.0] * 10


def test_rates_of_back_to_back_calls_of_mixed_length_are_unbiased() -> None:
    ends = [0.0]
    for i in range(100):
        ends.append(ends[-1] + (0.5 if i % 2 else 1.5))
    calls = [Call("step", a, b, True) for a, b in itertools.pairwise(ends)]
    assert sum(slice_rates(calls, 88.0)) / 10 == pytest.approx(1.0, rel=1e-9)


def test_an_interval_is_students() -> None:
    found = mean_estimate([2.0, 4.0, 6.0])
    assert found.value == 4.0
    assert found.high - found.value == pytest.approx(4.303 * 2.0 / math.sqrt(3.0))
    assert mean_estimate([1.0]).high == math.inf


def test_the_tail_index_of_pareto_samples_is_theirs() -> None:
    # Quantiles of P(X > x) = x ** -1.5 at equal steps.
    samples = [((i + 0.5) / 4000) ** (-1 / 1.5) for i in range(4000)]
    found = tail_index(samples)
    assert found is not None
    assert found.index == pytest.approx(1.5, rel=0.02)
    assert (found.num_samples, found.num_tail) == (4000, 200)
    assert found.high - found.low == pytest.approx(2 * 1.96 * found.index / math.sqrt(200))


def test_no_tail_is_estimated_from_few_or_equal_samples() -> None:
    assert tail_index([]) is None
    assert tail_index([1.0, 2.0] * 40) is None
    assert tail_index([3.0] * 1000) is None


def test_the_knee_is_the_least_level_within_a_tenth_of_the_best() -> None:
    knee = find_knee({1: [1.0] * 5, 4: [4.0] * 5, 16: [7.6] * 5, 64: [8.0] * 5})
    assert (knee.kind, knee.concurrency, knee.certainty) == ("saturates", 16, 1.0)
    assert knee.saturation == 8.0
    assert knee.efficiency.value == knee.efficiency.high == 0.125


def test_proportional_growth_has_no_knee() -> None:
    knee = find_knee({1: [1.0, 1.2, 0.8], 8: [8.0, 8.1, 7.7]})
    assert (knee.kind, knee.concurrency) == ("scales", 8)
    assert knee.efficiency.low < 1.0 < knee.efficiency.high


def test_growth_that_slackens_is_told_from_growth_that_ends() -> None:
    knee = find_knee({1: [1.0] * 4, 4: [2.0] * 4, 16: [3.0] * 4})
    assert (knee.kind, knee.concurrency, knee.saturation) == ("bends", 16, 3.0)


def test_a_knee_within_the_noise_is_not_certain() -> None:
    knee = find_knee({4: [2.0, 4.0, 3.0, 5.0], 8: [4.0, 2.5, 3.0, 4.5]})
    assert knee.kind == "saturates"
    assert 0.2 < knee.certainty < 0.9


def test_one_level_or_no_answer_says_nothing() -> None:
    assert find_knee({4: [1.0, 1.0]}).kind == "unknown"
    assert find_knee({1: [0.0, 0.0], 4: [0.0, 0.0]}).kind == "unknown"
    assert find_knee({}).concurrency == 0
