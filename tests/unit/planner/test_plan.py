"""Bounds by hand, and plans whose answer is known."""

from __future__ import annotations

import tomllib

import pytest

from forebay.errors import ConfigError
from forebay.planner.bounds import bounds_of, slowest_mean
from forebay.planner.distribution import sampled
from forebay.planner.plan import Plan, Prices, Wanted, make_scenario, plan
from forebay.planner.scenario import Scenario
from forebay.planner.showing import outcome_text, picture, plan_text, toml
from forebay.planner.simulation import simulate
from tests.unit.planner.profiles import profile

BASE = Scenario(groups=4, group_size=2, poll_max_s=0.0, steps=40)
WANTED = Wanted()


def _plan(wanted: Wanted = WANTED, base: Scenario = BASE, **values: float) -> Plan:
    return plan(profile(**values), base, wanted)  # type: ignore[arg-type]


def test_bounds_are_those_of_the_arithmetic() -> None:
    found = bounds_of(profile(overhead_s=0.5, slots=8, store=True), BASE)
    assert found.cycle_s == 2.5 and found.busy == 0.8
    assert found.episode_s == pytest.approx(3.75) == pytest.approx(found.group_s)
    assert found.rate == pytest.approx(8 / 2.5)
    assert found.episodes_in_flight == 12  # 3.2 x 3.75
    assert found.max_staleness == 2  # 3.75 / 2.5 + 0.5
    assert found.sync_busy == pytest.approx(2.0 / 6.25)
    assert found.generator_rate == pytest.approx(8 / 0.25 / 3)
    assert found.store_rate == 100.0 and found.environment_rate is None
    assert found.staleness_rate == pytest.approx(9 * 8 / 3.75)
    assert found.generator_share == pytest.approx(0.2)
    assert found.ceiling == pytest.approx(0.8)


def test_a_rate_limited_environment_is_a_ceiling() -> None:
    found = bounds_of(profile(), BASE.model_copy(update={"environment_concurrency": 6}))
    assert found.environment_rate == pytest.approx(2.0)  # 6 / (3 x 1 s)
    assert found.ceiling == pytest.approx(0.5)  # of 4 episodes per second


def test_the_slowest_of_a_group() -> None:
    assert slowest_mean([1.0, 2.0, 3.0], 1) == pytest.approx(2.0)
    assert slowest_mean([1.0, 2.0, 3.0], 2) == pytest.approx((1 * 1 + 2 * 3 + 3 * 5) / 9)


def test_the_smallest_fleet_is_littles_law() -> None:
    """N* = 8 / 2 s x 3.75 s = 15 for a learner that never waits."""
    found = _plan(Wanted(busy=1.0))
    assert found.reached and found.busy == pytest.approx(1.0, abs=1e-9)
    assert 15 <= found.episodes_in_flight <= 18
    assert found.max_staleness in (2, 3)
    assert found.credit <= found.max_staleness + 1
    assert found.decoupling_helps and found.sync_busy == pytest.approx(2 / 5.75)


def test_generators_are_added_until_they_do_what_the_learner_eats() -> None:
    """12 calls of 0.25 s a second need 3 slots; with a tenth to spare, 4."""
    assert _plan(slots=1).generators == 4


def test_it_says_when_decoupling_does_not_help() -> None:
    found = _plan(turns=1.0, call_s=0.01, step_s=sampled([0.01]))
    assert not found.decoupling_helps
    assert "Decoupling does not help" in found.reason
    assert found.max_staleness == 0


def test_it_says_when_a_staleness_limit_makes_it_impossible() -> None:
    found = _plan(Wanted(max_staleness=1), step_s=sampled([4.0]))
    assert not found.reached and found.max_staleness == 1
    assert "max_staleness 1 limits it" in found.reason and "S_min = 7" in found.reason


def test_it_says_when_the_environment_is_the_limit() -> None:
    found = _plan(base=BASE.model_copy(update={"environment_concurrency": 2}))
    assert not found.reached
    assert "The environments allow 0.667 episodes/s, and the learner eats 4." in found.reason


def test_overhead_is_named_as_the_limit() -> None:
    assert "L / (L + W) = 80.0%" in _plan(overhead_s=0.5).reason


def test_a_plan_has_its_price() -> None:
    found = _plan(Wanted(prices=Prices(learner=8.0, generator=1.0, actor_process=0.5)))
    assert found.cost_per_hour == 9.5
    assert found.cost_per_1000_steps == pytest.approx(9.5 / 3600 * 1000 / found.steps_per_s)
    with pytest.raises(ConfigError, match="price of generator must be at least 0"):
        Prices(generator=-1.0)


@pytest.mark.parametrize("busy", [0.0, 1.5])
def test_busy_is_a_fraction(busy: float) -> None:
    with pytest.raises(ConfigError, match="busy is a fraction"):
        Wanted(busy=busy)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grups": 3}, "no such setting: grups"),
        ({"groups": "many"}, "groups: Input should be a valid integer"),
        ({"credit": 12}, "credit=12 exceeds max_staleness"),
        ({"minibatches": 3, "groups": 4}, "minibatches hold whole groups"),
        ({"generators_lost": 1}, "without a generator nothing moves"),
        ({"capacity_groups": 2}, "could never hold a batch"),
        ({"steps": 5, "warmup_steps": 5}, "nothing would be left to measure"),
        ({"minibatches": 2, "max_staleness": 0}, "reach staleness 1"),
    ],
)
def test_settings_that_cannot_work_say_why(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_scenario(values)


def test_what_is_shown_holds_the_figures() -> None:
    found = _plan(Wanted(prices=Prices(learner=8.0)))
    text = plan_text(found, 0.97)
    assert found.reason in text and "N* = lambda x E[T] = 4 x 3.75 s = 15" in text
    assert "8.00 per hour" in text
    assert len(picture(found)) == 2 + len({cell.max_staleness for cell in found.cells})
    written = tomllib.loads(toml(found, 'a "b".toml'))
    assert written["extends"] == 'a "b".toml'
    assert written["staleness"]["max_staleness"] == found.max_staleness
    assert written["actors"]["processes"] * written["actors"]["episodes_per_process"] >= (
        found.episodes_in_flight
    )
    assert "Little's law" in outcome_text(simulate(profile(), BASE))
