"""Whole runs on virtual time: controlled episodes between several processes, environments and a learner."""

from __future__ import annotations

import pytest

from benchmarks.controller_study.cases import Case, Limit, Place
from benchmarks.controller_study.world import World


def test_c56_every_batch_has_its_share_of_each_environment_whatever_its_speed() -> None:
    fast, slow = Place("fast", step_s=0.2), Place("slow", step_s=2.0)
    outcome = World(Case("", places=(fast, slow), steps=60, max_staleness=29)).run()
    assert [batch["fast"] for batch in outcome.batches] == pytest.approx([4] * 60, abs=1)


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("limit", ["slower", "thrashes"])
def test_controlled_episodes_come_near_the_best_fixed_number(limit: Limit, processes: int) -> None:
    case = Case("", places=(Place(limit=limit, capacity=24),), steps=60)
    best = max(World(case, fixed=number).run().fresh_per_s for number in (16, 24, 32, 48))
    assert World(case, processes=processes).run().fresh_per_s > 0.9 * best


def test_a_limit_of_calls_at_once_is_kept_by_several_processes_together() -> None:
    case = Case("", places=(Place(limit="refuses", capacity=24),), steps=40)
    outcome = World(case, processes=4).run()
    assert outcome.refused < 0.05 * outcome.calls
    assert outcome.lost == 0
    assert outcome.mean_live == pytest.approx(24, rel=0.3)
