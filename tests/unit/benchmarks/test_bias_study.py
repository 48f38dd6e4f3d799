"""A slow task keeps its share of trained tokens per turn, by the real rules in virtual time."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from benchmarks.bias import ADMITTED, DISCARDING, case_37, run_rule, tables
from benchmarks.bias_study.records import Episode, Told, distribution, share_of
from benchmarks.bias_study.world import Rule

RULES = {rule.name: rule for rule in (*ADMITTED, *DISCARDING)}
BATCHES = 60


@functools.cache
def measured(rule: str, turns: int, shared: bool) -> dict[str, Any]:
    return run_rule(case_37(turns, shared), RULES[rule], BATCHES, 0, "slow")


@pytest.mark.parametrize("turns", [1, 6])
@pytest.mark.parametrize("rule", ["wait", "drop", "mask"])
def test_c37_a_slow_environment_keeps_its_share_of_trained_tokens_per_turn(rule: str, turns: int) -> None:
    found = measured(rule, turns, shared=True)
    assert 0.45 <= found["share"] <= 0.55
    assert found["discarded_share"] == found["masked_share"] == 0
    assert found["fresh_by_turn"]["slow"][0] > 0.9  # but for what the last batches left behind


@pytest.mark.parametrize("turns", [1, 6])
@pytest.mark.parametrize("rule", ["wait", "drop"])
def test_c37_slow_tasks_among_fast_ones_keep_their_share_too(rule: str, turns: int) -> None:
    found = measured(rule, turns, shared=False)
    assert 0.45 <= found["share"] <= 0.55
    assert found["masked_share"] == 0
    assert (found["discarded_share"] == 0) == (rule == "wait")


def test_masking_starves_slow_tasks_among_fast_ones_and_the_report_says_so() -> None:
    short, long = measured("mask", 1, shared=False), measured("mask", 6, shared=False)
    assert short["share"] < 0.25 and 0.25 < long["share"] < 0.4
    # In one turn, all tokens are equally old: an episode without a fresh one counts as discarded.
    assert short["discarded_share"] > 0.3 and long["discarded_share"] == 0
    by_turn = long["fresh_by_turn"]["slow"]
    assert by_turn[0] < 0.1 and by_turn[-1] > 0.9
    assert long["fresh_by_turn"]["fast"][0] > 0.9


def test_discarding_alone_starves_slow_tasks_or_generates_in_vain() -> None:
    forgets, insists = (measured(rule.name, 1, shared=False) for rule in DISCARDING[::-1])
    assert forgets["share"] < 0.1
    assert insists["share"] == pytest.approx(0.5, abs=0.05)
    assert insists["started"]["slow_share"] > 0.75  # most of them for nothing
    assert insists["discarded_share"] > 0.6


def test_no_rule_waits_for_more_than_it_admits() -> None:
    assert Rule("x", "drop").settings(4).batches_in_flight == 5
    assert Rule("x", "drop", admits=False).settings(4).batches_in_flight == 20


def test_figures_by_hand() -> None:
    told = Told()
    told.accepted = [Episode("fast", 8, 0.2), Episode("fast", 8, 0.2), Episode("slow", 16, 0.6)]
    told.fresh["slow"].update({0: 2, 1: 8})
    assert told.fresh_by_turn("slow", 2, turn_tokens=8) == [0.25, 1.0]
    assert distribution(told.accepted, "slow") == {
        "episodes": 3,
        "tokens": pytest.approx(32 / 3),
        "difficulty": pytest.approx(1 / 3),
        "slow_share": pytest.approx(1 / 3),
    }
    assert share_of("slow", {"fast": 3.0, "slow": 1.0}) == 0.25
    assert distribution([], "slow")["tokens"] is None


def test_the_tables_hold_what_was_measured() -> None:
    row = {"rule": "wait", **measured("wait", 1, shared=True)}
    scenario = {"says": "two kinds", "one_environment": [], "own_environments": [row]}
    written = tables({"x": scenario})
    assert written.startswith("**Two kinds.**")
    assert "| two environments | wait | 0.50 | 8.0 of 8.0 | 0.20 of 0.20 | 0 % | 0 % |" in written
