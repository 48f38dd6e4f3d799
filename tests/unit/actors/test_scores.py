from __future__ import annotations

import itertools
import math

import pytest

from forebay.actors.scores import compare, estimate, is_binary, pass_at, wilson


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # R: binom::binom.wilson(x, n)
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (1, 2, 0.0945312, 0.9054688),
        # Newcombe (1998), Statistics in Medicine 17: 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_of_the_literature(successes: int, count: int, low: float, high: float) -> None:
    found = wilson(successes / count, count)
    assert found == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_an_interval_of_shares_stays_inside_0_and_1() -> None:
    found = estimate({f"t{i}": [float(i > 2)] for i in range(64)})
    assert found is not None and found.method == "wilson"
    assert found.mean == pytest.approx(61 / 64)
    assert found.low is not None and found.high is not None
    assert found.low < found.mean < found.high < 1.0


def test_samples_of_one_task_are_no_independent_trials() -> None:
    agreeing = estimate({f"t{i}": [float(i % 2)] * 8 for i in range(10)})
    alone = estimate({f"t{i}": [float(i % 2)] for i in range(10)})
    mixed = estimate({f"t{i}": [0.0, 1.0] * 4 for i in range(10)})
    assert agreeing is not None and alone is not None and mixed is not None
    assert agreeing.low == pytest.approx(alone.low) == pytest.approx(wilson(0.5, 10)[0])
    assert mixed.low == pytest.approx(wilson(0.5, 80)[0])


def test_a_task_counts_once_however_many_episodes_it_has() -> None:
    found = estimate({"long": [0.0] * 9, "short": [1.0], "lost": []})
    assert found is not None and (found.mean, found.num_tasks) == (0.5, 2)


def test_other_rewards_get_a_bootstrap_that_stays_inside_what_was_seen() -> None:
    rewards = {f"t{i}": [0.1 * i] for i in range(10)}
    found = estimate(rewards)
    assert found is not None and found.method == "bootstrap"
    assert found.mean == pytest.approx(0.45)
    # The mean of 10 draws with replacement has a standard deviation of 0.2872 / sqrt(10) = 0.0908.
    assert found.low == pytest.approx(0.45 - 1.96 * 0.0908, abs=0.02)
    assert found.high == pytest.approx(0.45 + 1.96 * 0.0908, abs=0.02)
    assert found == estimate(rewards)
    assert estimate({}) is None and estimate({"t": []}) is None
    single = estimate({"t": [0.5]})
    assert single is not None and (single.low, single.high, single.method) == (None, None, "none")


@pytest.mark.parametrize(("num_episodes", "num_successes"), [*itertools.product((2, 3, 5), (0, 1, 2))])
def test_pass_at_k_is_the_share_of_choices_with_a_success(num_episodes: int, num_successes: int) -> None:
    values = [1.0] * num_successes + [0.0] * (num_episodes - num_successes)
    for k, share in pass_at({"t": values}).items():
        chosen = list(itertools.combinations(values, int(k)))
        assert share == pytest.approx(sum(max(choice) for choice in chosen) / len(chosen))


def test_pass_at_k_needs_shares_and_several_episodes() -> None:
    assert pass_at({"a": [1.0], "b": [0.0]}) == {}
    assert pass_at({"a": [0.5, 1.0]}) == {}
    assert list(pass_at({"a": [0.0] * 6})) == ["1", "2", "4", "6"]
    # b lost an episode: it is in pass@1 and not in pass@2
    assert pass_at({"a": [1.0, 0.0], "b": [0.0]}) == {"1": 0.25, "2": 1.0}
    assert not is_binary({"a": [math.nan]})


def test_policies_are_compared_task_by_task() -> None:
    first = {"a": [0.0], "b": [1.0], "c": [0.25], "only": [1.0], "lost": [1.0]}
    second = {"c": [0.5], "b": [1.0], "a": [1.0], "lost": []}
    found = compare(first, second)
    assert found is not None
    assert found.difference.mean == pytest.approx((1.0 + 0.0 + 0.25) / 3)
    assert (found.num_better, found.num_worse, found.num_equal) == (2, 0, 1)
    assert found.difference.low is not None and 0.0 <= found.difference.low <= found.difference.mean
    assert compare(first, {"x": [1.0]}) is None


def test_pairing_tells_apart_what_two_intervals_do_not() -> None:
    first = {f"t{i}": [i / 50] for i in range(50)}
    second = {f"t{i}": [i / 50 + 0.02] for i in range(50)}
    one, other, paired = estimate(first), estimate(second), compare(first, second)
    assert one is not None and other is not None and paired is not None
    assert one.high is not None and other.low is not None and one.high > other.low
    assert paired.difference.low == pytest.approx(0.02)
