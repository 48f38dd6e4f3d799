"""The machine: cores and memory that a run may really use, shared memory, open files, clock."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

from forebay.clock import Clock
from forebay.launch.probes.finding import Finding

_GIB = 2**30
_MIN_MEMORY_BYTES = 2 * _GIB
_MIN_SHARED_BYTES = 1 * _GIB
_SPARE_FILES = 256
_PAUSE_S = 0.2
_MAX_DRIFT_S = 0.05
# Between them lies every moment at which this program can be running.
_OLDEST_S, _NEWEST_S = 1_735_689_600.0, 4_102_444_800.0
_NO_LIMIT_BYTES = 1 << 60
_SHARED = Path("/dev/shm")  # noqa: S108 (looked at, not written to)


class Limits(NamedTuple):
    """What the control group of this process allows.

    Attributes:
        cpus: Cores' worth of time; None if there is no limit.
        memory_bytes: Memory; None if there is no limit.
    """

    cpus: float | None
    memory_bytes: int | None


def look_at_cores(num_cores: int | None = None, limits: Limits | None = None) -> list[Finding]:
    """Compare the cores that are seen with the time that may be used on them.

    Args:
        num_cores: Cores of the affinity mask; by default this process's.
        limits: Of the control group; by default this process's.
    """
    num_cores = num_cores or len(os.sched_getaffinity(0))
    limits = limits or cgroup_limits()
    of_all = f" of {os.cpu_count()}" if os.cpu_count() != num_cores else ""
    seen = f"{num_cores}{of_all} may be used"
    if limits.cpus is not None and limits.cpus < num_cores:
        return [
            Finding(
                "cores",
                "warn",
                f"{seen}, but only {limits.cpus:g} cores' worth of time: threads will be stopped and started",
                "Raise the container's CPU quota, or start it with as many cores: taskset, --cpuset-cpus.",
            )
        ]
    if num_cores < 2:
        return [Finding("cores", "warn", f"{seen}: learner and generator share it", "Use 2 cores or more.")]
    return [Finding("cores", "ok", seen)]


def look_at_memory(available_bytes: int | None = None) -> list[Finding]:
    """Say how much memory can still be used, the container's limit included.

    Args:
        available_bytes: What can be used; by default what the system says.
    """
    available_bytes = available_bytes or _available_bytes()
    seen = f"{available_bytes / _GIB:.1f} GiB available"
    if available_bytes < _MIN_MEMORY_BYTES:
        return [Finding("memory", "warn", seen, "End other programs, or raise the container's limit.")]
    return [Finding("memory", "ok", seen)]


def look_at_shared_memory(path: Path = _SHARED) -> list[Finding]:
    """Say how large shared memory is; only the collectives of several devices use it."""
    if not path.is_dir():
        return [Finding("shared memory", "note", f"no {path}")]
    size_bytes = shutil.disk_usage(path).total
    seen = f"{size_bytes / _GIB:.2f} GiB at {path}"
    if size_bytes < _MIN_SHARED_BYTES:
        remedy = "Only for several GPUs in a container: docker run --shm-size=8g"
        return [Finding("shared memory", "note", seen, remedy)]
    return [Finding("shared memory", "ok", seen)]


def look_at_open_files(num_connections: int = 0, soft_limit: int | None = None) -> list[Finding]:
    """Compare the limit of open files with what an actor process opens.

    Args:
        num_connections: Sockets and pipes that its episodes hold.
        soft_limit: Of this process by default.
    """
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft_limit is None else soft_limit
    needed = num_connections + _SPARE_FILES
    if soft_limit != resource.RLIM_INFINITY and soft_limit < needed:
        return [Finding("open files", "bad", f"{soft_limit}, needed {needed}", f"ulimit -n {needed}")]
    return [Finding("open files", "ok", f"{soft_limit}")]


def look_at_clock(clock: Clock) -> list[Finding]:
    """Check that the date is possible and that the wall clock keeps step while it is watched."""
    before_s = clock.wall_s(), clock.monotonic_s()
    clock.sleep(_PAUSE_S)
    wall_s, monotonic_s = clock.wall_s() - before_s[0], clock.monotonic_s() - before_s[1]
    if not _OLDEST_S < before_s[0] < _NEWEST_S:
        seen = f"{before_s[0]:.0f} s since 1970: leases and the ages of files depend on it"
        return [Finding("clock", "bad", seen, "Set the date: timedatectl set-ntp true")]
    drift_s = abs(wall_s - monotonic_s)
    if drift_s > _MAX_DRIFT_S:
        seen = f"jumped by {drift_s:.2f} s in {monotonic_s:.2f} s: leases may end early"
        return [Finding("clock", "warn", seen, "Let ntpd or chrony slew it instead of stepping it.")]
    return [Finding("clock", "ok", "the date is possible, and it keeps step")]


def cgroup_limits(root: Path = Path("/")) -> Limits:
    """Return the tightest limits above this process; cgroup v2, or v1 as containers mount it.

    Args:
        root: Where `proc` and `sys` lie.
    """
    base = root / "sys/fs/cgroup"
    v1_quota = _words(base / "cpu/cpu.cfs_quota_us") or ["max"]
    cpus = [_quota(*v1_quota, *_words(base / "cpu/cpu.cfs_period_us"))]
    memory = [_bytes(*_words(base / "memory/memory.limit_in_bytes"))]
    for directory in _own_groups(root, base):
        cpus.append(_quota(*_words(directory / "cpu.max")))
        memory.append(_bytes(*_words(directory / "memory.max")))
    return Limits(
        min((number for number in cpus if number is not None), default=None),
        min((number for number in memory if number is not None), default=None),
    )


def _own_groups(root: Path, base: Path) -> list[Path]:
    """Return the control group of this process and those above it, cgroup v2."""
    lines = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()]
    own = next((words[2] for words in lines if words[0] == "0" and len(words) > 2), "/")
    group = base / own.lstrip("/")
    return [directory for directory in (group, *group.parents) if directory.is_relative_to(base)]


def _available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    free_bytes = int(fields.get("MemAvailable", "0 kB").split()[0]) * 1024
    limit_bytes = cgroup_limits().memory_bytes
    return free_bytes if limit_bytes is None else min(free_bytes, limit_bytes)


def _quota(quota: str = "max", period: str = "100000", *_: str) -> float | None:
    """Return cores' worth of time, from microseconds in a period of microseconds."""
    return None if quota in ("max", "-1") or not int(period) else int(quota) / int(period)


def _bytes(limit: str = "max", *_: str) -> int | None:
    return None if limit == "max" or int(limit) >= _NO_LIMIT_BYTES else int(limit)


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
