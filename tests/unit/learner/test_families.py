from __future__ import annotations

import msgspec
import pytest

from forebay.clock import SystemClock
from forebay.learner.dispatch import Dispatcher
from forebay.staleness import StalenessSettings, part_name
from forebay.store import StoreSettings, open_store
from forebay.trajectory import PolicyVersion, Task
from tests.unit.learner.small_run import open_at
from tests.unit.store.builders import RUN, make_spec

PARTS = 3
ATTEMPTS = make_spec(0).max_attempts


@pytest.fixture
def store():
    store = open_at()
    store.rewind(0)
    return store


class Turns:
    """Stands for fairness: says whose turn it is."""

    suspended = frozenset()

    def __init__(self, turns: str) -> None:
        self._turns = list(turns)

    def turns(self, recorded, stop, live, allowance) -> list[str]:
        taken, self._turns = self._turns[:allowance], self._turns[allowance:]
        return taken


def make_dispatcher(
    store, *, groups: int = PARTS, max_staleness: int = 1, turns: Turns | None = None
) -> Dispatcher:
    def make_group(serial, posed, min_version):
        environment = posed if isinstance(posed, str) else "calculator"
        spec = make_spec(serial, min_version=min_version, group_size=1, environment=environment)
        return msgspec.structs.replace(spec, task=posed) if isinstance(posed, Task) else spec

    settings = StalenessSettings(max_staleness=max_staleness)
    return Dispatcher(store, 0, make_group, settings, groups, 1, 100, turns, parts=PARTS)


def dispatched(store) -> list[tuple[str, str]]:
    """Return names and tasks, in order."""
    names = [group.group_id for group in store.scan()]
    return [(name, store.read_group(name).spec.task.task_id) for name in names]


def test_a_task_is_dispatched_as_its_parts_one_after_another(store) -> None:
    assert make_dispatcher(store).top_up() == 2 * PARTS
    assert dispatched(store) == [
        *((part_name(0, part), "task-0") for part in range(PARTS)),
        *((part_name(3, part), "task-3") for part in range(PARTS)),
    ]


def test_a_family_cut_by_the_credit_goes_on_with_the_next_also_after_a_restart(store) -> None:
    make_dispatcher(store, groups=4).top_up()  # 8 groups: two families and two parts
    assert dispatched(store)[-1] == (part_name(6, 1), "task-6")
    make_dispatcher(store, groups=5).top_up()
    assert dispatched(store)[8:] == [(part_name(6, 2), "task-6"), (part_name(9, 0), "task-9")]


def test_environments_have_families_of_their_own(store) -> None:
    make_dispatcher(store, groups=4, turns=Turns("abaabbab")).top_up()
    assert dispatched(store) == [
        (part_name(0, 0), "task-0"),
        (part_name(1, 0), "task-1"),
        (part_name(0, 1), "task-0"),
        (part_name(0, 2), "task-0"),
        (part_name(1, 1), "task-1"),
        (part_name(1, 2), "task-1"),
        (part_name(6, 0), "task-6"),
        (part_name(7, 0), "task-7"),
    ]
    make_dispatcher(store, groups=6, turns=Turns("bbaa")).top_up()
    assert dispatched(store)[8:] == [
        (part_name(7, 1), "task-7"),
        (part_name(7, 2), "task-7"),
        (part_name(6, 1), "task-6"),
        (part_name(6, 2), "task-6"),
    ]


def test_what_the_store_had_no_room_for_comes_next(store) -> None:
    small = open_store(StoreSettings(engine="memory", capacity_groups=4), RUN, SystemClock())
    small.rewind(0)
    dispatcher = make_dispatcher(small)
    assert dispatcher.top_up() == 4
    _lose(small, small.claim(1, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0))[0])
    assert dispatcher.top_up() == 1
    assert dispatched(small)[-1] == (part_name(3, 1), "task-3")


def test_of_as_many_parts_as_a_task_has_one_has_its_task_posed_again(store) -> None:
    dispatcher = make_dispatcher(store, groups=6)
    dispatcher.top_up()
    lost = [part_name(0, 1), part_name(3, 0), part_name(3, 2), part_name(6, 0)]
    for slot in store.claim(64, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0)):
        if slot.group_id in lost:
            _lose(store, slot)
    for name in lost:
        dispatcher.repeat(name)
    assert dispatcher.top_up() == 4
    again = [(part_name(12, part), "task-3") for part in range(PARTS)]
    assert dispatched(store)[8:] == [*again, (part_name(15, 0), "task-15")]


def _lose(store, slot) -> None:
    """Fail every attempt at a slot; what is claimed in between is given back."""
    for attempt in range(ATTEMPTS):
        store.fail(slot, reason="environment")
        for other in store.claim(64, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0)):
            if other.group_id == slot.group_id:
                slot = other
            else:
                store.release_slot(other)
        assert (slot.attempt == attempt + 1) == (attempt + 1 < ATTEMPTS)
