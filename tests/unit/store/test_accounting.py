"""The audit names what is wrong, and takes nothing for wrong that others changed while it looked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.store import StoreSettings, accounting, open_store
from forebay.store.accounting import Look
from forebay.store.rules import RuleStore
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RuleStore]:
    """A store with two groups of two members, each in a side file; the first is recorded."""
    settings = StoreSettings(path=tmp_path, durability="os", side_file_bytes=0)
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.dispatch([make_spec(i) for i in range(2)], incarnation=0)
    for slot in store.claim(4, ttl_s=60.0, actor="actor", version=FIRST):
        store.put(make_trajectory(slot), slot)
    ((group,), _) = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    store.record(make_entry(1, [group.spec.group_id]), incarnation=0)
    yield store
    store.close()


def test_a_side_file_that_is_gone_is_a_contradiction(store: RuleStore, tmp_path: Path) -> None:
    for file in (tmp_path / "payloads").iterdir():
        file.unlink()
    problems = sorted(store.audit())
    assert [problem.split(":")[0] for problem in problems] == [
        f"side file of member {member} of group g{group}" for member in (0, 1) for group in (0, 1)
    ]
    assert all("No such file or directory" in problem for problem in problems)


def test_a_side_file_that_was_forgotten_meanwhile_is_none(store: RuleStore, tmp_path: Path) -> None:
    """A snapshot refers to files; before they are read, their group is committed and they are removed."""
    looks: list[tuple[str, ...]] = []

    def read(look: Look) -> tuple[str, ...]:
        if not looks:
            group = store._transactions.read(lambda ledger: ledger.group("g0"))
            for member in group.members:
                (tmp_path / "payloads" / member.side_file).unlink()
        looks.append(store._transactions.read(look))
        store.commit(1, incarnation=0)
        return looks[-1]

    assert accounting.audit(read) == ()
    assert [len(problems) for problems in looks] == [2, 0]
