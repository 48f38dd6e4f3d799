"""Shares hold whatever the speed: random environments, weights and failures, over the real rules.

The bound: as long as no environment is suspended, batch n has exactly what `BatchShares` owes each
environment. The count of one after T batches of B groups is therefore T * B * w up to less than max(1, K - 1)
groups, for K environments of shares w (`Shares` derives that), at any T: no window drifts, none starves.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.staleness import OnStale, Shares
from tests.properties.fair_world import PATIENCE_S, Kind, World


@st.composite
def weights(draw: st.DrawFn, most: int = 6) -> Shares:
    drawn = draw(st.lists(st.floats(0.05, 10.0), min_size=1, max_size=most))
    return Shares(tuple(f"e{i}" for i in range(len(drawn))), tuple(drawn))


@given(weights(), st.integers(0, 5000))
def test_positions_and_counts_agree_and_stay_near_the_weights(shares: Shares, num: int) -> None:
    counts, total = shares.counts(num), sum(shares.weights)
    assert sum(counts.values()) == num
    bound = max(1, len(shares.names) - 1)
    for name, weight in zip(shares.names, shares.weights, strict=True):
        assert abs(counts[name] - num * weight / total) < bound + 1e-6
    index, before = shares.place(num)
    assert before == counts[shares.names[index]]
    after = shares.counts(num + 1)
    assert {name: after[name] - counts[name] for name in counts} == {
        name: int(name == shares.names[index]) for name in counts
    }


@st.composite
def kinds(draw: st.DrawFn) -> list[Kind]:
    return [
        Kind(
            f"e{index}",
            weight=draw(st.floats(0.2, 5.0)),
            episode_s=draw(st.sampled_from([0.02, 0.1, 0.5, 2.0, 8.0])),
            failing=draw(st.sampled_from([0.0, 0.0, 0.2, 0.5])),
        )
        for index in range(draw(st.integers(2, 4)))
    ]


@settings(max_examples=15)
@given(
    kinds(),
    st.sampled_from(["wait", "wait", "drop", "mask"]),
    st.integers(1, 8),
    st.integers(0, 5),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([4, 16, 64]),
    st.integers(0, 2**32),
)
def test_every_batch_has_what_it_owes_whatever_the_speeds_and_failures(
    environments: list[Kind],
    on_stale: OnStale,
    groups: int,
    max_staleness: int,
    updates: int,
    places: int,
    seed: int,
) -> None:
    world = World(
        environments,
        groups=groups,
        max_staleness=max_staleness + updates - 1,
        on_stale=on_stale,
        updates=updates,
        places=places,
        batches=12,
        seed=seed,
    )
    world.run()
    assert [world.composition(n) for n in range(12)] == [world.due(n) for n in range(12)]
    assert not world.fairness.short and not world.fairness.suspended
    total, weight = world.totals(), sum(kind.weight for kind in environments)
    for kind in environments:
        assert abs(total[kind.name] - 12 * groups * kind.weight / weight) < max(1, len(environments) - 1)
    counters = world.store.stats().counters
    if on_stale == "wait":
        assert "rejected.stale" not in counters, "wait discards nothing"


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
def test_c37_slow_tasks_are_trained_in_their_share(on_stale: OnStale) -> None:
    world = World(
        [Kind("fast", 1.0, 0.05), Kind("slow", 1.0, 0.6)],
        groups=4,
        max_staleness=2,
        on_stale=on_stale,
        step_s=0.1,
        batches=60,
    )
    world.run()
    share = world.totals()["slow"] / world.totals().total()
    assert 0.45 <= share <= 0.55


def test_c56_a_fast_environment_does_not_saturate_the_batches() -> None:
    # Ten times as fast: first in, first out would take 18.18 and 1.82 groups a batch.
    world = World([Kind("fast", 0.5, 0.3), Kind("slow", 0.5, 3.0)], groups=20, places=40, batches=30)
    world.run()
    assert [world.composition(n) for n in range(30)] == [{"fast": 10, "slow": 10}] * 30
    assert world.fairness.short.total() == 0


@pytest.mark.parametrize("max_staleness", [0, 4])
def test_c56_a_dead_environment_stops_nobody_and_its_shortage_is_counted(max_staleness: int) -> None:
    world = World(
        [Kind("alive", 1.0, 0.5), Kind("dead", 1.0, 0.01, failing=1.0), Kind("other", 2.0, 1.0)],
        groups=8,
        max_staleness=max_staleness,
        batches=40,
    )
    world.run()
    assert world.fairness.suspended == {"dead"}
    assert world.fairness.short == {"dead": sum(world.due(n)["dead"] for n in range(40))} == {"dead": 80}
    among = Shares(("alive", "other"), (1.0, 2.0))
    assert world.totals() == among.counts(320), "the others share what it leaves by their weights"
    # It loses eight groups in a row long before the patience ends, and is then tried once per patience.
    assert world.taken_s[0] - world.began_s < PATIENCE_S
    probes = 1 + (world.taken_s[-1] - world.began_s) / PATIENCE_S
    assert world.attempts["dead"] <= 3 * ((max_staleness + 1) * 8 + 8 + probes)


def test_an_environment_that_hangs_is_waited_for_once() -> None:
    world = World(
        [Kind("alive", 1.0, 0.5), Kind("hung", 1.0, 1e9)], groups=4, max_staleness=3, places=64, batches=20
    )
    world.run()
    times_s = [world.began_s, *world.taken_s]
    waits_s = [after - before for before, after in zip(times_s, world.taken_s, strict=False)]
    assert [n for n, wait_s in enumerate(waits_s) if wait_s > PATIENCE_S / 10] == [0]
    assert PATIENCE_S <= waits_s[0] < PATIENCE_S + 2.0
    assert world.fairness.short == {"hung": 40}
    assert world.totals() == {"alive": 80}


def test_an_environment_that_comes_back_has_its_share_again() -> None:
    world = World(
        [Kind("alive", 1.0, 0.5), Kind("ill", 1.0, 0.2, failing=1.0)], groups=6, max_staleness=2, batches=45
    )
    world.run(until=20)
    assert world.fairness.short == {"ill": 60} and world.fairness.suspended == {"ill"}
    world.kinds["ill"].failing = 0.0
    world.step_s = PATIENCE_S / 5  # until the next probe
    world.run()
    assert not world.fairness.suspended
    back = next(n for n in range(20, 45) if world.composition(n)["ill"])
    assert back <= 20 + 5 + 3, "within a patience, and the groups that were in flight"
    # What was in flight has to be trained first: after as many batches as are in flight, all is as before.
    assert [world.composition(n) for n in range(back + 3, 45)] == [{"alive": 3, "ill": 3}] * (42 - back)
    assert world.fairness.short.total() <= 3 * (back + 3)


def test_one_that_takes_longer_than_the_patience_has_its_share_once_it_has_delivered() -> None:
    world = World(
        [Kind("fast", 1.0, 0.5), Kind("slow", 1.0, 1.8 * PATIENCE_S, spread=0.1)],
        groups=4,
        max_staleness=1,
        batches=12,
        step_s=PATIENCE_S / 5,
    )
    world.run()
    back = next(n for n in range(12) if world.composition(n)["slow"])
    assert [world.composition(n) for n in range(back + 2, 12)] == [{"fast": 2, "slow": 2}] * (10 - back)
    assert back <= 6 and world.fairness.short["slow"] <= 2 * (back + 2)
