"""kill -9 of every role, at random moments and between arrows of the loop; a seeded part of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.harness import Harness, account
from tests.system.kill_plan import POINTS, Kill, plan_kills
from tests.system.soak import soak

SEED = 2
FORGETTING_SEED = 2


@pytest.mark.timeout(600)
def test_p2_kills_lose_nothing_repeat_nothing_and_change_no_bit(tmp_path: Path) -> None:
    outcome = soak(tmp_path, 4, SEED)
    assert outcome["wrong"] == [], outcome
    assert outcome["num_kills"] >= 4
    totals = outcome["totals"]
    assert (totals["steps"], totals["lost"], totals["repeated"]) == (28, 0, 0)
    assert totals["accepted"] >= totals["trained"] == 28 * 8
    assert totals["replayed_batches"] > 0
    assert {kill["role"] for kill in outcome["kills"]} == {"learner", "generator", "all"}


@pytest.mark.timeout(600)
def test_c52_what_checkpoints_cover_is_forgotten_under_kills_too(tmp_path: Path) -> None:
    """Live entries are those not yet committed: at the end, two checkpoints' worth of batches."""
    outcome = soak(tmp_path, 2, FORGETTING_SEED, keep_consumed=False)
    assert outcome["wrong"] == [], outcome
    totals = outcome["totals"]
    assert totals["trained"] == 18 * 8
    assert totals["stored"] <= (7 + 7) * 8


@pytest.mark.timeout(600)
def test_c39_actors_that_are_all_killed_at_step_3_come_back(tmp_path: Path) -> None:
    with Harness(tmp_path, ("learner.steps=14", "actors.processes=2")) as harness:
        assert harness.run_through((Kill(3, "actor"), Kill(7, "actor", again_s=1.0))) == 0, harness.tail()
        totals, wrong = account(harness)
    assert wrong == []
    assert (totals["steps"], totals["incarnations"]) == (14, 1)
    assert [kill["role"] for kill in harness.done] == ["actor"] * 3


def test_the_plan_follows_from_the_seed_and_visits_every_point() -> None:
    assert plan_kills(20, 7) == plan_kills(20, 7) != plan_kills(20, 8)
    plan = plan_kills(2 * len(POINTS), 7)
    assert {kill.point for kill in plan} == {*POINTS, None}
    assert {kill.role for kill in plan} == {"learner", "generator", "actor", "all"}
    assert [kill.step for kill in plan] == sorted(kill.step for kill in plan)
    assert all(kill.member is None for kill in plan)
    of_gang = plan_kills(30, 7, members=4)
    assert {kill.member for kill in of_gang} == {0, 1, 2, 3, None}
    assert all(kill.role == "learner" for kill in of_gang if kill.member is not None)
