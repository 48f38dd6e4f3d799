"""Lanes: who may begin how many episodes."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.actors.controller import Demand
from forebay.actors.crew import Crew
from forebay.actors.lanes import Lanes, Part, Wanted
from forebay.actors.levels import Turn
from forebay.staleness import Shares

STARVED = Demand(starved=True, batches=0.0, steps=0)


def lanes(most: int = 640, **weights: float) -> Lanes:
    weights = weights or {"fast": 1.0, "slow": 1.0}
    return Lanes(Shares(tuple(weights), tuple(weights.values())), batch_episodes=128, first=16, most=most)


def look(lanes: Lanes, now_s: float, live: Mapping[str, int]) -> None:
    crew = Crew("alone", 0.0, lanes)
    crew.look(now_s, live)
    crew.decide(now_s, dict.fromkeys(lanes.controllers, STARVED))


def test_the_first_places_are_shared_by_weight() -> None:
    assert list(lanes(fast=3.0, slow=1.0).wanted(0.0, {})) == [Wanted("fast", 12), Wanted("slow", 4)]


def test_the_most_is_kept_and_nobody_takes_another_s_share() -> None:
    both = lanes(most=16)
    for name in ("fast", "slow"):
        both.controllers[name]._pace.limit = 100.0
    assert list(both.wanted(0.0, {"fast": 7, "slow": 2})) == [Wanted("fast", 1), Wanted("slow", 6)]
    assert list(both.wanted(0.0, {"fast": 8, "slow": 8})) == []


def test_what_the_others_leave_free_is_used() -> None:
    both = lanes(most=16)
    both.controllers["fast"]._pace.limit = 100.0
    both.controllers["slow"]._pace.limit = 2.0
    assert list(both.wanted(0.0, {"slow": 2})) == [Wanted("fast", 14)]


def test_failures_of_one_environment_leave_the_other_alone() -> None:
    both = lanes()
    for second in range(1, 9):
        live = {name: one.allowed(float(second)) for name, one in both.controllers.items()}
        for name in live:
            for _ in range(live[name]):
                both.turn(name, Turn(0, second - 0.9, 0.0, 0.9))
            both.ended(name, 0.9)
        for _ in range(5):
            both.failed("slow")
        look(both, float(second), live)
    assert both.controllers["fast"].limit >= 32
    assert both.controllers["slow"].limit < 8
    assert both.decisions["slow.refused"] >= 1
    assert both.decisions["fast.refused"] == 0


def test_a_process_runs_its_part_of_what_all_may_run() -> None:
    both = lanes(fast=3.0, slow=1.0)
    both.part = Part(1, 3)
    assert list(both.wanted(0.0, {})) == [Wanted("fast", 4), Wanted("slow", 1)]
    both.plan = {"fast": 5, "slow": 1}
    assert list(both.wanted(0.0, {})) == [Wanted("fast", 2)]


def test_failures_that_are_not_taken_in_let_nothing_grow() -> None:
    both = lanes()
    both.part, both.plan = Part(1, 2), {"fast": 40, "slow": 8}
    both.failed("fast")
    assert list(both.wanted(0.0, {"fast": 9})) == [Wanted("slow", 4)]
    assert list(both.wanted(0.0, {"fast": 7, "slow": 4})) == [Wanted("fast", 2)]
    both.drain(1)
    both.release(-1)
    assert list(both.wanted(0.0, {"fast": 9, "slow": 4})) == []
    both.release(1)
    assert list(both.wanted(0.0, {"fast": 9, "slow": 4})) == [Wanted("fast", 11)]


def test_who_takes_over_goes_on_from_the_plan() -> None:
    both = lanes()
    both.plan = {"fast": 50, "slow": 7, "unknown": 3}
    both.take_over(0.0)
    assert both.plan is None
    assert both.totals(0.0) == {"fast": 50, "slow": 7}


def test_a_claim_that_brings_all_says_that_work_waits() -> None:
    one = lanes(tool=1.0)
    one.claimed("tool", 16, 4)
    one.turn("unknown", Turn(0, 0.0, 0.0, 1.0))
    one.ended("unknown", 1.0)
    for second in range(1, 9):
        one.turn("tool", Turn(0, second - 0.5, 0.0, 0.5))
        look(one, float(second), {"tool": 16})
    assert one.controllers["tool"].limit == 16
