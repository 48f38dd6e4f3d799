"""The controller alone: observations made by hand, a second apart."""

from __future__ import annotations

from collections.abc import Callable

from forebay.actors.controller import Controller, Decision, Demand, Observation
from forebay.actors.levels import Turn

STARVED = Demand(starved=True, batches=0.0, steps=0)


class Process:
    """A process whose places are always taken, and whose turns take what a function of their number says."""

    def __init__(
        self, turn_s: Callable[[int], float] = lambda _: 1.0, *, most: int = 1024, turns: int = 4
    ) -> None:
        self.controller = Controller("tool", batch_episodes=128, first=16, most=most)
        self.turn_s, self.turns = turn_s, turns
        self.now_s = 0.0
        self.decisions: list[Decision] = []

    def look(
        self, demand: Demand = STARVED, *, failing: Callable[[int], int] = lambda _: 0, waits: bool = True
    ) -> None:
        """Let a second pass."""
        live = self.controller.allowed(self.now_s)
        seconds = self.turn_s(live)
        self.now_s += 1.0
        ended = max(1, round(live / seconds))
        turn = Turn(0, self.now_s - seconds, 0.0, seconds)
        seen = Observation(
            now_s=self.now_s,
            live=live,
            work_waits=waits,
            turns=(turn,) * ended,
            failures=failing(live),
            episodes_s=(seconds * self.turns,) * max(1, ended // self.turns),
            demand=demand,
        )
        decision = self.controller.look(seen)
        if decision is not None:
            self.decisions.append(decision)

    @property
    def limit(self) -> float:
        return self.controller.limit

    def kinds(self) -> list[str]:
        return [one.kind for one in self.decisions]


def test_a_starved_learner_gets_twice_as_many_per_turn_up_to_the_most() -> None:
    process = Process(most=200)
    for _ in range(40):
        process.look()
    assert [(one.before, one.after) for one in process.decisions[:4]] == [
        (16, 32),
        (32, 64),
        (64, 128),
        (128, 200),
    ]
    assert str(process.decisions[0]) == "+16 (16 to 32): learner starved 100 %"
    assert str(process.decisions[4]) == (
        "200 held: learner starved 100 %, but actors.max_episodes_per_process allows no more"
    )
    assert len(process.decisions) == 5


def test_a_larger_number_is_reached_little_by_little() -> None:
    process = Process(lambda _: 10.0)
    while not process.decisions:
        process.look()
    began_s = process.now_s
    assert process.decisions[0].after == 32
    assert [process.controller.allowed(began_s + s) for s in (0.0, 1.5, 3.0)] == [16, 24, 32]


def test_what_the_learner_has_enough_of_does_not_grow() -> None:
    process = Process()
    for steps in range(12):
        process.look(Demand(starved=False, batches=0.8, steps=steps))
    assert (process.limit, process.kinds()) == (16, [])


def test_work_that_does_not_wait_lets_nothing_grow() -> None:
    process = Process()
    for steps in range(12):
        process.look(STARVED._replace(steps=steps), waits=False)
    assert (process.limit, process.kinds()) == (16, [])


def test_a_lasting_surplus_is_cut_by_a_tenth() -> None:
    process = Process()
    for _ in range(12):
        process.look()
    before = int(process.limit)
    for steps in range(60):
        process.look(Demand(starved=False, batches=2.0, steps=steps))
    cut = process.decisions[-1]
    assert "fewer" in process.kinds()
    assert cut.reason == "2.0 batches of `tool` are ready"
    assert process.limit < before


def test_a_learner_that_pauses_takes_no_places_away() -> None:
    process = Process()
    for _ in range(12):
        process.look()
    before = process.limit
    for _ in range(300):
        process.look(Demand(starved=False, batches=9.0, steps=5))
    assert process.limit == before
    assert process.decisions[-1].reason == "the learner takes nothing"


def test_turns_that_only_become_slower_set_a_ceiling_that_is_tried_again() -> None:
    process = Process(lambda live: max(1.0, live / 48))
    for _ in range(30):
        process.look()
    assert 48 <= process.limit <= 75
    slower = next(one for one in process.decisions if one.kind == "slower")
    assert slower.reason.endswith("slower for no more answers")
    assert "steps of `tool`" in slower.reason
    for _ in range(200):
        process.look()
    assert process.kinds().count("probe") >= 1
    assert 45 <= process.limit <= 115


def test_a_gone_knee_is_found_out_by_trying() -> None:
    capacity = [48]
    process = Process(lambda live: max(1.0, live / capacity[0]))
    for _ in range(30):
        process.look()
    capacity[0] = 400
    for _ in range(150):
        process.look()
    assert process.limit > 150


def test_refusals_are_answered_at_once_and_the_number_closes_in() -> None:
    process = Process()

    def refused(live: int) -> int:
        return max(0, live - 40)

    for _ in range(60):
        process.look(failing=refused)
    assert "refused" in process.kinds()
    assert 34 <= process.limit <= 42
    total = 0
    for _ in range(120):
        total += refused(process.controller.allowed(process.now_s))
        process.look(failing=refused)
    assert total <= 0.01 * 120 * 36


def test_failures_that_fewer_do_not_cure_are_not_counted() -> None:
    process, due = Process(), [0.0]

    def a_tenth(live: int) -> int:
        due[0] += live / 10
        failed = int(due[0])
        due[0] -= failed
        return failed

    for _ in range(60):
        process.look(failing=a_tenth)
    assert "acquitted" in process.kinds()
    acquitted = next(one for one in process.decisions if one.kind == "acquitted")
    assert "of the calls of `tool` fail with fewer episodes too" in acquitted.reason
    assert process.limit > 64


def test_a_learner_that_lacks_little_gets_an_eighth_of_a_batch_more() -> None:
    process = Process(turns=1)
    for steps in range(3):
        process.look(Demand(starved=False, batches=0.7, steps=steps))
    before = process.limit
    while process.limit == before:
        process.look(Demand(starved=False, batches=0.1, steps=3))
    assert process.limit - before == 16.0


def test_a_number_taken_over_is_gone_on_from_without_doubling() -> None:
    process = Process()
    process.controller.resume(80, 0.0)
    assert process.controller.allowed(10.0) == 80
    while not process.decisions:
        process.look()
    assert process.decisions[0].after == 120  # half as much again: the learner starves all the time


def test_what_still_runs_of_a_larger_number_tells_nothing_of_the_smaller_one() -> None:
    process = Process(lambda live: max(1.0, live / 48))
    while "slower" not in process.kinds():
        process.look()
    limit = process.limit
    cut_s = process.now_s
    for second in range(1, 40):
        seen = Observation(
            now_s=cut_s + second,
            live=int(limit) + 40,
            work_waits=True,
            turns=(Turn(0, cut_s + second - 3.0, 0.0, 3.0),) * 20,
            demand=STARVED,
        )
        assert process.controller.look(seen) is None
    assert process.limit == limit
