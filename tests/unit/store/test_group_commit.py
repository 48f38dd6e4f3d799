"""Group commit: what arrives during one commit shares the next, and errors go to their callers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from forebay.errors import StoreError
from forebay.store.group_commit import Committer, Operation


class Disk:
    """Commits when told; remembers how operations were grouped."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.free = threading.Event()
        self.busy = threading.Event()

    def commit(self, take: Callable[[], Operation | None]) -> None:
        self.busy.set()
        assert self.free.wait(10.0)
        batch = list(iter(take, None))
        self.batches.append(len(batch))
        for operation in batch:
            operation.attempt(None)  # type: ignore[arg-type]


def submit(committer: Committer, call: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(committer.submit(Operation(call)))
        except (KeyError, StoreError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def fail(txn: object) -> None:
    raise KeyError("stop")


def test_operations_gather_while_the_disk_is_busy() -> None:
    disk = Disk()
    committer = Committer(disk.commit)
    first, _ = submit(committer, lambda txn: 0)
    assert disk.busy.wait(10.0)
    others = [submit(committer, lambda txn, i=i: i) for i in range(1, 6)]
    bad, error = submit(committer, fail)
    wait_until(lambda: len(committer._waiting) == 7)
    disk.free.set()
    for thread in (first, bad, *(thread for thread, _ in others)):
        thread.join(10.0)
    # All had come by the time that the first commit began to take.
    assert disk.batches == [7]
    assert [outcome for _, outcome in others] == [[1], [2], [3], [4], [5]]
    assert isinstance(error[0], KeyError)
    committer.stop()


def test_what_comes_too_late_for_a_commit_is_in_the_next() -> None:
    taken, going_on = threading.Event(), threading.Event()
    batches: list[int] = []

    def commit(take: Callable[[], Operation | None]) -> None:
        batch = list(iter(take, None))
        taken.set()
        assert going_on.wait(10.0)
        batches.append(len(batch))
        for operation in batch:
            operation.attempt(None)  # type: ignore[arg-type]

    committer = Committer(commit)
    threads = [submit(committer, lambda txn: "first")]
    assert taken.wait(10.0)
    threads += [submit(committer, lambda txn, i=i: i) for i in range(200)]
    wait_until(lambda: len(committer._waiting) == 200)
    going_on.set()
    for thread, _ in threads:
        thread.join(10.0)
    assert batches == [1, 128, 72]
    assert [outcome for _, outcome in threads] == [["first"], *([i] for i in range(200))]


def test_the_error_of_a_commit_reaches_its_maker_and_the_neighbors_are_told() -> None:
    disk = Disk()
    gathered = threading.Event()

    def die(take: Callable[[], Operation | None]) -> None:
        disk.busy.set()
        assert gathered.wait(10.0)
        list(iter(take, None))
        raise KeyError("broken")

    committer = Committer(die)
    first, broken = submit(committer, lambda txn: None)
    assert disk.busy.wait(10.0)
    second, refused = submit(committer, lambda txn: None)
    wait_until(lambda: len(committer._waiting) == 2)
    gathered.set()
    first.join(10.0)
    second.join(10.0)
    assert isinstance(broken[0], KeyError)
    assert str(refused[0]) == "the commit of a neighbor was interrupted. Make the call again."
    # Nobody waits for those that are gone.
    with pytest.raises(KeyError):
        committer.submit(Operation(lambda txn: None))


def test_a_commit_that_breaks_down_before_it_takes_anything_leaves_nothing_behind() -> None:
    done: list[str] = []
    broken = [True]

    def commit(take: Callable[[], Operation | None]) -> None:
        if broken.pop():
            raise ZeroDivisionError
        for operation in iter(take, None):
            operation.attempt(None)  # type: ignore[arg-type]

    committer = Committer(commit)
    with pytest.raises(ZeroDivisionError):
        committer.submit(Operation(lambda txn: done.append("never")))
    broken.append(False)
    committer.submit(Operation(lambda txn: done.append("second")))
    assert done == ["second"]


def test_nobody_counts_on_a_caller_that_was_interrupted_while_it_waited() -> None:
    disk = Disk()
    committer = Committer(disk.commit)
    first, _ = submit(committer, lambda txn: "first")
    assert disk.busy.wait(10.0)

    class Interrupted(Operation):
        def wait(self) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        committer.submit(Interrupted(lambda txn: "never"))
    third, outcome = submit(committer, lambda txn: "third")
    wait_until(lambda: len(committer._waiting) == 2)
    disk.free.set()
    first.join(10.0)
    third.join(10.0)
    assert outcome == ["third"]
    assert disk.batches == [2]


def test_stopping_finishes_what_was_submitted() -> None:
    disk = Disk()
    committer = Committer(disk.commit)
    thread, outcome = submit(committer, lambda txn: "done")
    assert disk.busy.wait(10.0)
    disk.free.set()
    committer.stop()
    committer.stop()
    thread.join(10.0)
    assert outcome == ["done"]
    with pytest.raises(StoreError, match="the store is closed"):
        committer.submit(Operation(lambda txn: None))
