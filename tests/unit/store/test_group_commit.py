"""Group commit: what arrives during one commit shares the next, and errors go to their callers."""

from __future__ import annotations

import threading
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

    def commit(self, batch: list[Operation]) -> None:
        self.busy.set()
        assert self.free.wait(10.0)
        self.batches.append(len(batch))
        for operation in batch:
            operation.attempt(None)  # type: ignore[arg-type]


def submit(committer: Committer, call: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(committer.submit(Operation(call, grows=False)))
        except (KeyError, StoreError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def fail(txn: object) -> None:
    raise KeyError("stop")


def test_operations_gather_while_the_disk_is_busy() -> None:
    disk = Disk()
    committer = Committer(disk.commit, "writer")
    first, _ = submit(committer, lambda txn: 0)
    assert disk.busy.wait(10.0)
    others = [submit(committer, lambda txn, i=i: i) for i in range(1, 6)]
    bad, error = submit(committer, fail)
    while committer._queue.qsize() < 6:
        threading.Event().wait(0.001)
    disk.free.set()
    for thread in (first, bad, *(thread for thread, _ in others)):
        thread.join(10.0)
    assert disk.batches == [1, 6]
    assert [outcome for _, outcome in others] == [[1], [2], [3], [4], [5]]
    assert isinstance(error[0], KeyError)
    committer.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_died() -> None:
    def die(batch: list[Operation]) -> None:
        raise ZeroDivisionError

    committer = Committer(die, "writer")
    with pytest.raises(StoreError, match=r"writer thread failed\. Open the store again"):
        committer.submit(Operation(lambda txn: None, grows=False))
    committer.stop()
    with pytest.raises(StoreError, match="the store is closed"):
        committer.submit(Operation(lambda txn: None, grows=False))


def test_stopping_finishes_what_was_submitted() -> None:
    disk = Disk()
    committer = Committer(disk.commit, "writer")
    thread, outcome = submit(committer, lambda txn: "done")
    assert disk.busy.wait(10.0)
    disk.free.set()
    committer.stop()
    committer.stop()
    thread.join(10.0)
    assert outcome == ["done"]
    with pytest.raises(StoreError, match="the store is closed"):
        committer.submit(Operation(lambda txn: None, grows=False))
