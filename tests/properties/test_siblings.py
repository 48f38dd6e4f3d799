"""Siblings that do not wait for one another: nothing is lost or comes twice, and all are compared."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.learner.siblings import decode_families
from forebay.staleness import OnStale, family_of, parse_part
from forebay.store.accounting import count_lost
from tests.properties.fair_world import Kind, World
from tests.properties.test_fairness import kinds

PARTS = 4


def check_accounts(world: World) -> None:
    """Every batch is full, no episode is in two, and each has a sibling that had finished."""
    trained: Counter[str] = Counter()
    tasks: dict[str, str] = {}
    for batch in world.trained:
        names = [group.spec.group_id for group in batch.groups]
        assert tuple(names) == batch.entry.group_ids
        assert len(names) == world.groups
        trained.update(names)
        families = decode_families(batch.entry.packing)
        assert list(families) == list(dict.fromkeys(map(family_of, names)))
        for group in batch.groups:
            name = group.spec.group_id
            compared = families[family_of(name)]
            assert name in compared and len(compared) > 1
            assert {family_of(other) for other in compared} == {family_of(name)}
            assert tasks.setdefault(family_of(name), group.spec.task.task_id) == group.spec.task.task_id
            assert parse_part(name)[1] < PARTS
    assert set(trained.values()) == {1}
    stats = world.store.stats()
    assert count_lost(stats) == 0
    assert world.store.audit() == ()
    counters = stats.counters
    assert counters["trajectories.recorded"] == trained.total() == world.groups * world.num_batches
    rejected = {name for name in counters if name.startswith("trajectories.rejected.")}
    assert rejected <= {"trajectories.rejected.stale", "trajectories.rejected.no_sibling"}


@settings(max_examples=12)
@given(
    kinds(),
    st.sampled_from(["wait", "drop", "mask"]),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([8, 64]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_run_ends_and_accounts_for_every_episode_whatever_is_lost(
    environments: list[Kind],
    on_stale: OnStale,
    tasks: int,
    max_staleness: int,
    places: int,
    shared: bool,
    seed: int,
) -> None:
    world = World(
        environments if shared else environments[:1],
        groups=tasks * PARTS,
        max_staleness=max_staleness,
        on_stale=on_stale,
        places=places,
        batches=8,
        seed=seed,
        parts=PARTS,
    )
    world.run()
    check_accounts(world)
    if on_stale == "wait" and max_staleness:
        assert "rejected.stale" not in world.store.stats().counters, "wait discards nothing"


def test_without_losses_no_episode_is_alone_and_every_environment_has_its_share() -> None:
    world = World(
        [Kind("fast", 1.0, 0.5), Kind("slow", 3.0, 4.0)], groups=16, max_staleness=3, batches=20, parts=PARTS
    )
    world.run()
    check_accounts(world)
    assert [world.composition(n) for n in range(20)] == [{"fast": 4, "slow": 12}] * 20
    assert not any(name.startswith("rejected") for name in world.store.stats().counters)


@pytest.mark.parametrize("failing", [0.5, 0.8])
def test_siblings_that_never_come_are_not_waited_for(failing: float) -> None:
    world = World(
        [Kind("flaky", 1.0, 0.5, failing=failing)], groups=8, max_staleness=0, batches=10, parts=PARTS, seed=1
    )
    world.run()
    check_accounts(world)
    assert world.store.stats().counters["rejected.no_sibling"] > 0
