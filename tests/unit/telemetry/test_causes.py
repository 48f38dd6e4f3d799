from __future__ import annotations

from forebay.clock import ManualClock
from forebay.telemetry.causes import CauseClock, CauseTotals


def test_every_second_belongs_to_the_cause_named_last() -> None:
    clock = ManualClock(100.0)
    stretches: list[tuple[str, float, float]] = []
    causes = CauseClock(clock, "episodes", lambda *stretch: stretches.append(stretch))
    clock.advance(2.0)
    causes.switch("episodes")  # says nothing new
    clock.advance(1.0)
    causes.switch("urgent")
    clock.advance(4.0)
    assert causes.read() == {"episodes": 3.0, "urgent": 4.0}
    assert causes.cause == "urgent"
    causes.switch("episodes")
    clock.advance(1.0)
    assert causes.read() == {"episodes": 4.0, "urgent": 4.0}
    assert stretches == [("episodes", 100.0, 103.0), ("urgent", 103.0, 107.0)]


def test_totals_count_only_what_passed_between_two_readings() -> None:
    clock = ManualClock()
    causes, totals = CauseClock(clock, "episodes"), CauseTotals()
    clock.advance(5.0)  # nobody waits
    before = causes.read()
    clock.advance(1.0)
    causes.switch("packing")
    clock.advance(0.5)
    totals.add_since(before, causes.read())
    clock.advance(7.0)
    assert totals.drain() == {"episodes": 1.0, "packing": 0.5}
    assert totals.drain() == {}
