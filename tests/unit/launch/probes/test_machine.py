from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.launch.probes import machine
from forebay.launch.probes.machine import Limits


def test_the_tightest_limit_above_a_process_counts_in_cgroup_v2(tmp_path: Path) -> None:
    root = tmp_path
    group = root / "sys/fs/cgroup/jobs/mine"
    group.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("8589934592\n")
    (group.parent / "cpu.max").write_text("150000 100000\n")
    (group.parent / "memory.max").write_text("max\n")
    assert machine.cgroup_limits(root) == Limits(cpus=1.5, memory_bytes=8 * 2**30)


def test_cgroup_v1_is_read_as_containers_mount_it(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    for name, text in (
        ("cpu/cpu.cfs_quota_us", "50000"),
        ("cpu/cpu.cfs_period_us", "100000"),
        ("memory/memory.limit_in_bytes", "9223372036854771712"),
    ):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(f"{text}\n")
    assert machine.cgroup_limits(tmp_path) == Limits(cpus=0.5, memory_bytes=None)


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert machine.cgroup_limits(tmp_path) == Limits(None, None)


@pytest.mark.parametrize(
    ("num_cores", "limits", "level"),
    [
        (8, Limits(None, None), "ok"),
        (8, Limits(8.0, None), "ok"),
        (8, Limits(1.5, None), "warn"),
        (1, Limits(None, None), "warn"),
    ],
)
def test_cores_that_may_not_be_used_all_the_time(num_cores: int, limits: Limits, level: str) -> None:
    [finding] = machine.look_at_cores(num_cores, limits)
    assert finding.level == level
    assert finding.seen.startswith(f"{num_cores} ")


def test_little_memory_and_little_shared_memory(tmp_path: Path) -> None:
    assert machine.look_at_memory(2**31)[0].level == "ok"
    assert machine.look_at_memory(2**31 - 1)[0].level == "warn"
    assert machine.look_at_shared_memory(tmp_path / "nothing")[0].level == "note"


@pytest.mark.parametrize(
    ("num_connections", "soft_limit", "level"),
    [(768, 1024, "ok"), (769, 1024, "bad"), (0, 255, "bad"), (10_000, -1, "ok")],
)
def test_open_files_follow_from_the_connections(num_connections: int, soft_limit: int, level: str) -> None:
    [finding] = machine.look_at_open_files(num_connections, soft_limit)
    assert finding.level == level
    assert finding.remedy == ("" if level == "ok" else f"ulimit -n {num_connections + 256}")


class JumpingClock(ManualClock):
    """A clock whose wall time leaps ahead while one sleeps."""

    def wall_s(self) -> float:
        return super().wall_s() * 2.0


@pytest.mark.parametrize(
    ("clock", "level"),
    [
        (ManualClock(1.8e9), "ok"),
        (ManualClock(0.0), "bad"),
        (ManualClock(5e9), "bad"),
        (JumpingClock(0.9e9), "warn"),
    ],
)
def test_clocks(clock: ManualClock, level: str) -> None:
    [finding] = machine.look_at_clock(clock)
    assert finding.level == level
