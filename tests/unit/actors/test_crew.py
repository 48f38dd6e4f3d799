"""The crew: one process decides for all, and another when it is gone."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.actors.board import Note, Posted
from forebay.actors.controller import Demand
from forebay.actors.crew import Crew
from forebay.actors.lanes import Lanes
from forebay.actors.levels import Turn
from forebay.staleness import Shares

STARVED = Demand(starved=True, batches=0.0, steps=0)


def crew(name: str, joined_s: float, expected: int = 1) -> Crew:
    lanes = Lanes(Shares(("tool",), (1.0,)), batch_episodes=32, first=16, most=100)
    return Crew(name, joined_s, lanes, expected=expected)


def meet(crews: Mapping[str, Crew], now_s: float, ages_s: Mapping[str, float] | None = None) -> None:
    """Let all of them see one another's notes."""
    notes = {name: one.note(now_s) for name, one in crews.items()}
    posted = {name: Posted((ages_s or {}).get(name, 0.0), note) for name, note in notes.items()}
    for one in crews.values():
        one.meet(posted, now_s)


def test_the_one_that_has_been_there_longest_decides_and_each_runs_its_part() -> None:
    crews = {"a": crew("a", 7.0), "b": crew("b", 5.0), "c": crew("c", 7.0)}
    meet(crews, 0.0)
    meet(crews, 0.5)
    assert [one.decides for one in crews.values()] == [False, True, False]
    assert [one.lanes.allowed(0.5)["tool"] for one in crews.values()] == [5, 6, 5]
    assert {one.num_processes for one in crews.values()} == {3}


def test_nobody_runs_the_part_of_one_that_is_yet_to_come() -> None:
    crews = {"a": crew("a", 1.0, expected=4)}
    meet(crews, 0.0)
    assert crews["a"].lanes.allowed(0.0)["tool"] == 4
    meet(crews, 5.0)
    assert crews["a"].lanes.allowed(5.0)["tool"] == 16


def test_what_all_episodes_do_is_taken_in_once() -> None:
    crews = {"a": crew("a", 1.0), "b": crew("b", 2.0)}
    meet(crews, 0.0)
    for second in range(1, 12):
        now_s = float(second)
        for one in crews.values():
            live = one.lanes.allowed(now_s)["tool"]
            for _ in range(live):
                one.lanes.turn("tool", Turn(0, now_s - 0.9, 0.0, 0.9))
            one.look(now_s, {"tool": live})
        meet(crews, now_s)
        meet(crews, now_s)
        crews["a"].decide(now_s, {"tool": STARVED})
        assert crews["a"].decide(now_s, {"tool": STARVED}) == []
    meet(crews, 12.0)
    assert crews["a"].lanes.totals(12.0)["tool"] >= 64
    assert crews["b"].lanes.totals(12.0) == crews["a"].lanes.totals(12.0)
    assert crews["b"].note(12.0).sights == ()
    assert crews["a"].lanes.decisions["tool.more"] >= 2
    assert sum(crews["b"].lanes.decisions.values()) == 0


def test_failures_anywhere_make_all_run_fewer() -> None:
    crews = {"a": crew("a", 1.0), "b": crew("b", 2.0)}
    meet(crews, 0.0)
    for second in range(1, 5):
        crews["b"].lanes.turn("tool", Turn(0, second - 0.9, 0.0, 0.9))
        for _ in range(4):
            crews["b"].lanes.failed("tool")
        for one in crews.values():
            one.look(float(second), {"tool": 8})
        meet(crews, float(second))
        crews["a"].decide(float(second), {"tool": STARVED})
    meet(crews, 5.0)
    assert crews["a"].lanes.decisions["tool.refused"] >= 1
    assert crews["b"].lanes.allowed(5.0)["tool"] <= 4


def test_the_next_one_goes_on_from_the_numbers_of_the_one_that_is_gone() -> None:
    crews = {"a": crew("a", 1.0), "b": crew("b", 2.0)}
    crews["a"].lanes.controllers["tool"].resume(70, 0.0)
    meet(crews, 1.0)
    meet(crews, 2.0)
    assert crews["b"].lanes.totals(2.0) == {"tool": 70}
    meet(crews, 9.0, {"a": 7.0})
    assert crews["b"].decides
    assert crews["b"].lanes.allowed(9.0) == {"tool": 70}


def test_one_that_joins_with_a_clock_behind_goes_on_from_what_the_others_run() -> None:
    crews = {"a": crew("a", 5.0)}
    crews["a"].lanes.controllers["tool"].resume(70, 0.0)
    meet(crews, 1.0)
    crews["late"] = crew("late", 1.0)
    meet(crews, 2.0)
    meet(crews, 2.5)
    assert [one.decides for one in crews.values()] == [False, True]
    assert [one.lanes.totals(2.5) for one in crews.values()] == [{"tool": 70}] * 2


def test_a_store_that_is_slow_to_answer_does_not_make_turns_of_others_later() -> None:
    crews = {"a": crew("a", 1.0), "b": crew("b", 2.0)}
    meet(crews, 0.0)
    crews["b"].lanes.turn("tool", Turn(0, 10.0, 0.0, 0.5))
    for one in crews.values():
        one.look(11.0, {"tool": 8})
    meet(crews, 11.0)
    crews["a"].lanes.controllers["tool"].resume(16, 10.5)
    crews["a"].decide(19.0, {"tool": STARVED})
    epoch = crews["a"].lanes.controllers["tool"]._pace.epoch
    assert epoch is not None
    assert (epoch.num_turns, epoch.turns) == (1, []), "the turn began before the number was changed"


def test_without_a_board_a_process_goes_on_as_it_was() -> None:
    one = crew("a", 1.0)
    assert one.meet({"b": Posted(0.0, Note(0.0, 0.0))}, 1.0) is False
    assert one.decides
