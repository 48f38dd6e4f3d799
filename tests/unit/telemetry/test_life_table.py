from __future__ import annotations

import numpy as np
import pytest

from forebay.telemetry.life_table import Tally, Weighed, bin_middle_s, bins_of, tabulate, whole
from tests.unit.telemetry.lives import lived


def test_tokens_and_trajectories_weigh_as_they_should() -> None:
    table = tabulate([
        Weighed("web", lived(10.0, environment=8.0, buffer=1.0), 3),
        Weighed("web", lived(20.0, environment=4.0, buffer=16.0), 1),
        Weighed("bash", lived(2.0, environment=1.0), 4),
        Weighed("bash", lived(100.0, environment=99.0), 0),
    ])  # fmt: skip
    web = table["web"]
    assert (web.trajectories, web.tokens, web.mean_s) == (2, 4, 12.5)
    assert web.share("environment") == pytest.approx((3 * 8 + 4) / (3 * 10 + 20))
    assert web.stages["environment"].trajectory_s == 12.0
    assert (web.residual_token_s, web.residual_trajectory_s) == pytest.approx((3 * 1.0 + 0.0, 1.0))
    everything = whole(table)
    assert (everything.trajectories, everything.tokens) == (4, 8)
    assert everything.token_s == pytest.approx(50 + 8)
    assert everything.recorded == ("environment", "buffer")
    assert table["web"].trajectories == 2  # adding up changes no part


def test_percentiles_are_within_five_percent_of_the_nearest_rank() -> None:
    lives = [Weighed("e", lived(environment=0.1 * i), 1 if i <= 50 else 0) for i in range(1, 101)]
    tally = tabulate(lives)["e"].stages["environment"]
    assert tally.trajectory_percentile_s(0.5) == pytest.approx(5.0, rel=0.05)
    assert tally.trajectory_percentile_s(0.95) == pytest.approx(9.5, rel=0.05)
    assert tally.token_percentile_s(0.5) == pytest.approx(2.5, rel=0.05)
    assert (tally.num_tokens, tally.num_trajectories) == (50, 100)
    assert Tally().token_percentile_s(0.5) is None


def test_a_table_stays_small_however_much_it_holds() -> None:
    life = whole(tabulate(Weighed("e", lived(float(i), reset=1e-9 * 1.01**i), 1) for i in range(20_000)))
    assert (life.trajectories, len(life.stages)) == (20_000, 2)
    assert max(len(tally.bins) for tally in life.stages.values()) <= 294


def test_bins_hold_their_middle() -> None:
    middles = np.array([bin_middle_s(number) for number in range(294)])
    assert bins_of(middles).tolist() == list(range(294))


def test_cut_stages_are_counted_by_name() -> None:
    table = tabulate(
        [Weighed("e", lived(clamped=("buffer",)), 1), Weighed("f", lived(clamped=("buffer",)), 1)]
    )
    assert whole(table).clamped == {"buffer": 2}
