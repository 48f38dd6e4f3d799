from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest

from forebay.clock import ManualClock, SystemClock
from forebay.errors import PeerFailedError, WeightsError
from forebay.generation.watcher import WeightWatcher
from forebay.trajectory import PolicyVersion
from tests.unit.generation.fakes import version


class Published:
    """A weight directory in memory."""

    def __init__(self) -> None:
        self.marker: PolicyVersion | None = None
        self.torn = False

    def latest(self) -> PolicyVersion | None:
        return self.marker

    def load(self, wanted: PolicyVersion | None = None) -> tuple[PolicyVersion, Mapping[str, np.ndarray]]:
        found = wanted or self.marker
        assert found is not None
        if self.torn:
            raise WeightsError("torn")
        return found, {"w": np.full(1, found.version)}


def test_c35_versions_only_go_forward() -> None:
    source, seen = Published(), []
    watcher = WeightWatcher(source, lambda found, _: seen.append(found), 0.01)
    for marker in (version(40), version(40), version(0), version(0), version(38, incarnation=1), version(41)):
        source.marker = marker
        watcher.look()
    assert seen == [version(40), version(38, incarnation=1)]
    assert (watcher.counters.loaded, watcher.counters.refused) == (2, 2)


def test_first_waits_until_something_is_published() -> None:
    source = Published()
    watcher = WeightWatcher(source, lambda *_: None, 0.005)
    threading.Timer(0.05, lambda: setattr(source, "marker", version(3))).start()
    found, tensors = watcher.first(60.0, SystemClock())
    assert (found, tensors["w"].tolist()) == (version(3), [3])


def test_first_gives_up_at_its_deadline() -> None:
    watcher = WeightWatcher(Published(), lambda *_: None, 0.001)
    with pytest.raises(PeerFailedError, match=r"within 0 s\. Look at the learner's log"):
        watcher.first(0.0, ManualClock())


def test_first_ends_when_stopped() -> None:
    watcher = WeightWatcher(Published(), lambda *_: None, 0.001)
    watcher.stop()
    with pytest.raises(PeerFailedError, match="stopped"):
        watcher.first(60.0, SystemClock())


def test_unreadable_version_is_counted_and_tried_again() -> None:
    source = Published()
    delivered = threading.Event()
    watcher = WeightWatcher(source, lambda *_: delivered.set(), 0.001)
    source.marker, source.torn = version(1), True
    watcher.start()
    while not watcher.counters.failures:
        assert not delivered.wait(0.001)
    source.torn = False
    assert delivered.wait(30)
    watcher.stop()
    assert watcher.counters.last_failure == "torn"
    assert watcher.version == version(1)
