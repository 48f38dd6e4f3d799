"""Simulated power loss: `fsync` loses nothing acknowledged; `os` shows that the simulation bites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.power_loss import STRACE, crash, trace

pytestmark = pytest.mark.skipif(STRACE is None, reason="no strace on PATH (apt-get install strace)")
NUM_CRASHES = 50


def test_p2_power_loss_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    events = trace(tmp_path, "fsync")
    assert {event.kind for event in events} == {"write", "sync", "note"}
    assert {seed: wrong for seed in range(NUM_CRASHES) if (wrong := crash(tmp_path, events, seed))} == {}


def test_without_waiting_for_the_disk_it_does(tmp_path: Path) -> None:
    """What `os` promises is less; a simulation that lost nothing here would prove nothing above."""
    events = trace(tmp_path, "os")
    assert any(crash(tmp_path, events, seed) for seed in range(NUM_CRASHES))
