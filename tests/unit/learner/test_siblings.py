from __future__ import annotations

import math

import msgspec
import pytest

from forebay.errors import StoreError
from forebay.learner.siblings import FinishedSiblings, decode_families, encode_families
from forebay.objectives.advantages import Outcome
from forebay.staleness import OutstandingGroup, part_name
from forebay.store import TakenGroup
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import open_at
from tests.unit.store.builders import FIRST, make_entry, make_spec, make_trajectory

FAMILY = "g00000000"


def taken(part: int, reward: float | None, serial: int = 0) -> TakenGroup:
    """A part of one episode, as the store hands it out."""
    store = open_at()
    store.rewind(0)
    spec = make_spec(0, group_id=part_name(serial, part), group_size=1)
    store.dispatch([spec], incarnation=0)
    (slot,) = store.claim(1, ttl_s=60.0, actor="a", version=FIRST)
    trajectory = msgspec.structs.replace(make_trajectory(slot), reward=reward)
    return TakenGroup(spec=spec, trajectories=(trajectory,))


def outstanding(part: int, settled: bool = True) -> OutstandingGroup:
    return OutstandingGroup(
        group_id=part_name(0, part),
        serial=part,
        environment="calculator",
        settled=settled,
        start=PolicyVersion(0, 0),
    )


def none_stored(group_id: str) -> TakenGroup:
    raise StoreError(f"no group {group_id}")


def siblings(read_group=none_stored, journal=(), most_families: int = 8) -> FinishedSiblings:
    return FinishedSiblings(1, read_group, journal, most_families)


def rewards_of(packing: bytes) -> dict[str, float | None]:
    return {name: outcome.reward for name, outcome in decode_families(packing)[FAMILY].items()}


@pytest.mark.parametrize("reward", [1.0, 0.1 + 0.2, -0.0, math.inf, None])
def test_outcomes_come_back_as_they_were(reward: float | None) -> None:
    families = {FAMILY: {part_name(0, 1): Outcome(reward, 17), part_name(0, 0): Outcome(0.5, 0)}}
    found = decode_families(encode_families(families))
    assert found == families
    assert list(found[FAMILY]) == list(families[FAMILY]), "sums depend on the order"


def test_a_journal_from_before_keeps_none_and_a_damaged_one_says_so() -> None:
    assert decode_families(b"") == {}
    with pytest.raises(StoreError, match="cannot be read"):
        decode_families(b"\xc1")


def test_a_batch_is_compared_with_what_was_trained_is_in_it_or_is_stored() -> None:
    known = siblings({part_name(0, 3): taken(3, 9.0)}.__getitem__)
    known.packing([taken(0, 1.0)])
    known.look([outstanding(1), outstanding(2, settled=False), outstanding(3)], 1, None)
    assert rewards_of(known.packing([taken(1, None)])) == {
        part_name(0, 0): 1.0,
        part_name(0, 1): None,
        part_name(0, 3): 9.0,
    }


def test_what_cannot_be_read_is_no_sibling() -> None:
    known = siblings()
    known.look([outstanding(0), outstanding(1)], 1, None)
    assert rewards_of(known.packing([taken(0, 1.0)])) == {part_name(0, 0): 1.0}


def test_a_resumed_learner_knows_what_the_journal_keeps() -> None:
    entry = msgspec.structs.replace(
        make_entry(1, [part_name(0, 0)]), packing=siblings().packing([taken(0, 1.0)])
    )
    assert siblings().look([outstanding(3)], 1, None).alone == (part_name(0, 3),)
    resumed = siblings(journal=[entry])
    assert resumed.look([outstanding(3)], 1, None).groups == (outstanding(3),)
    assert rewards_of(resumed.packing([taken(3, 0.0)])) == {part_name(0, 0): 1.0, part_name(0, 3): 0.0}


def test_families_are_forgotten_oldest_first_once_nothing_of_them_is_outstanding() -> None:
    known = siblings(most_families=2)
    for serial in (0, 4, 8, 12):
        known.packing([taken(0, 1.0, serial)])
    late = outstanding(3)  # of the oldest family, which is therefore kept
    assert known.look([late], 1, None).groups == (late,)
    assert known.look([], 1, None).groups == ()
    assert known.look([late], 1, None).alone == (late.group_id,)
