from __future__ import annotations

import pytest

from forebay.telemetry.sizing import episodes_needed, group_size_needed, slowest_of, staleness_needed


@pytest.mark.parametrize(
    ("episodes", "cycle_s", "episode_s", "needed"),
    [
        (128, 2.5, 6.0, 308),  # 51.2 a second, each for 6 s: 307.2
        (64, 4.0, 6.0, 96),  # 16 a second, each for 6 s
        (16, 4.0, 0.1, 1),
    ],
)
def test_episodes_in_flight_follow_littles_law(episodes, cycle_s, episode_s, needed) -> None:
    assert episodes_needed(episodes, cycle_s, episode_s) == needed


@pytest.mark.parametrize(
    ("group_s", "cycle_s", "updates", "needed"),
    [
        (23.0, 2.0, 1, 12),  # 11.5 + 0.5
        (6.0, 4.0, 1, 2),  # 1.5 + 0.5
        (6.1, 4.0, 1, 3),  # 1.525 + 0.5
        (6.0, 4.0, 3, 6),  # three versions a batch
        (0.0, 4.0, 1, 1),
    ],
)
def test_staleness_is_the_versions_made_meanwhile_and_a_half(group_s, cycle_s, updates, needed) -> None:
    assert staleness_needed(group_s, cycle_s, updates) == needed


def test_the_slowest_of_many_episodes_is_a_quantile_of_a_lognormal() -> None:
    # Normal quantiles: 4/5 is 0.841621, 96/97 is 2.313949; ln 4 / 1.644854 = 0.842807.
    assert slowest_of(4, 2.0, 8.0) == pytest.approx(2.0 * 2.718281828 ** (0.842807 * 0.841621), rel=1e-5)
    assert slowest_of(96, 2.0, 8.0) == pytest.approx(2.0 * 2.718281828 ** (0.842807 * 2.313949), rel=1e-3)
    assert slowest_of(1, 2.0, 8.0) == pytest.approx(2.0)
    assert slowest_of(96, 2.0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("success", "size"),
    [
        (0.5, 2),  # 1/4 + 1/4
        (0.25, 3),  # 1/64 + 27/64 = 0.4375; two: 0.625
        (0.05, 14),  # 0.95 ** 14 = 0.4877; 0.95 ** 13 = 0.5133
        (0.95, 14),
        (0.001, None),
    ],
)
def test_group_size_at_which_half_the_groups_differ(success, size) -> None:
    assert group_size_needed(success) == size
