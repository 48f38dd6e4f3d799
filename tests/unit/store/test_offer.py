from __future__ import annotations

from collections.abc import Iterator

from forebay.staleness import OutstandingGroup
from forebay.store.offer import Offer


def groups(read: list[int]) -> Iterator[OutstandingGroup]:
    for serial in range(5):
        read.append(serial)
        yield OutstandingGroup(
            group_id=f"g{serial}", serial=serial, environment="e", settled=True, start=None, num_bytes=1
        )


def test_no_more_is_read_than_is_looked_at() -> None:
    read: list[int] = []
    offer = Offer(groups(read))
    assert [group.serial for _, group in zip(range(2), offer, strict=False)] == [0, 1]
    assert read == [0, 1]
    assert [group.serial for group in offer] == [0, 1, 2, 3, 4]
    assert read == [0, 1, 2, 3, 4]
    assert [group.serial for group in offer] == [0, 1, 2, 3, 4]


def test_two_looks_at_once_see_the_same() -> None:
    offer = Offer(groups([]))
    assert [(a.serial, b.serial) for a, b in zip(offer, offer, strict=True)] == [(i, i) for i in range(5)]


def test_it_is_a_sequence() -> None:
    offer = Offer(groups([]))
    assert offer[-1].serial == 4
    assert [group.serial for group in offer[1:3]] == [1, 2]
    assert len(offer) == 5
    assert sorted(offer, key=lambda group: -group.serial)[0].serial == 4
