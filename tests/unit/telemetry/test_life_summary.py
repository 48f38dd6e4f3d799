from __future__ import annotations

import msgspec
import pytest

from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.life_summary import LifeSummary, summarize_lives
from forebay.telemetry.life_table import Weighed, tabulate
from forebay.telemetry.little import Flow
from tests.unit.telemetry.lives import lived


def test_shares_of_every_environment_add_up_with_the_residual() -> None:
    lives = [
        Weighed("web", lived(10.0, environment=8.0, buffer=1.0), 3),
        Weighed("web", lived(20.0, environment=4.0, buffer=17.0, clamped=("group",)), 1),
        Weighed("bash", lived(50.0, environment=10.0), 1),
    ]
    flows = {"buffer": Flow(10, 40.0, 40, 160.0, 700.0)}
    table = LifeTable(environments=tabulate(lives), flows=flows, wall_s=10.0, num_batches=1)
    summary = summarize_lives(table)
    web = summary.environments["web"]
    assert list(web.stages) == ["environment", "buffer", "residual", "total"]
    shares = {stage: one.share for stage, one in web.stages.items()}
    assert shares == pytest.approx(
        {"environment": 28 / 50, "buffer": 20 / 50, "residual": 2 / 50, "total": 1.0}
    )
    assert (web.stages["residual"].mean_s, web.stages["residual"].trajectory_mean_s) == pytest.approx(
        (0.5, 0.0)
    )
    assert (web.stages["environment"].mean_s, web.stages["environment"].trajectory_mean_s) == (7.0, 6.0)
    assert web.stages["environment"].p95_s == pytest.approx(8.0, rel=0.05)
    assert (web.share, summary.environments["bash"].share) == (0.5, 0.5)
    assert web.clamped == {"group": 1}
    assert (summary.dominant, summary.dominant_environment) == ("environment", "web")
    assert summary.dominant_share == pytest.approx(0.28)
    (buffer,) = summary.little
    assert (buffer.queue, buffer.inside, buffer.ratio) == ("buffer", 4.0, 1.0)
    assert msgspec.json.decode(msgspec.json.encode(summary), type=LifeSummary) == summary


def test_a_run_that_recorded_nothing_has_no_lives() -> None:
    assert summarize_lives(None) is None
