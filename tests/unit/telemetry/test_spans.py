import pytest

from forebay.clock import ManualClock
from forebay.telemetry.spans import STATES, TimeStrip


def test_every_second_belongs_to_exactly_one_state():
    clock = ManualClock(50.0)
    strip = TimeStrip(clock)
    clock.advance(1.0)
    with strip.span("starved"):
        clock.advance(2.0)
        with strip.span("packing"):
            clock.advance(4.0)
        clock.advance(8.0)
    clock.advance(16.0)
    shares = strip.read()
    booked = {state: seconds for state, seconds in shares.seconds.items() if seconds}
    assert booked == {"starved": 10.0, "packing": 4.0, "other": 17.0}
    assert shares.wall_s == sum(shares.seconds.values()) == 31.0


def test_an_exception_ends_its_span():
    clock = ManualClock()
    strip = TimeStrip(clock)

    def fail():
        with strip.span("computing"):
            clock.advance(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.advance(1.0)
    assert (strip.state, strip.read().busy) == ("other", 0.5)


def test_busy_leaves_out_what_was_before_the_end_of_warm_up():
    clock = ManualClock()
    strip = TimeStrip(clock)
    with strip.span("compiling"):
        clock.advance(100.0)
    strip.restart()
    with strip.span("computing"):
        clock.advance(9.7)
    with strip.span("starved"):
        clock.advance(0.3)
    assert strip.read().busy == pytest.approx(0.97)
    assert strip.read().share("starved") == pytest.approx(0.03)


def test_the_open_span_counts_and_intervals_subtract():
    clock = ManualClock()
    strip = TimeStrip(clock)
    with strip.span("computing"):
        clock.advance(3.0)
        earlier = strip.read()
        assert earlier.busy == 1.0
    with strip.span("publishing"):
        clock.advance(1.0)
        last = strip.read().minus(earlier)
    assert (last.wall_s, last.busy, last.share("publishing")) == (1.0, 0.0, 1.0)


def test_no_time_has_no_share():
    strip = TimeStrip(ManualClock())
    assert {strip.read().share(state) for state in STATES} == {0.0}
