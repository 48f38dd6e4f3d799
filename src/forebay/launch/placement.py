"""Which cores a process may use, and how it allocates; XLA looks once, when it starts."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence

from forebay.errors import ConfigError

CPUS_VARIABLE = "FOREBAY_CPUS"
PARENT_VARIABLE = "FOREBAY_PARENT"
TUNABLES_VARIABLE = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"
_PR_SET_PDEATHSIG = 1
# Of mallopt(3); -1 switches trimming off.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def divide_cpus(
    available: Sequence[int], learner: Sequence[int] = (), others: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide a machine's cores between the learner and everything else.

    Args:
        available: Cores this process may use.
        learner: Wanted cores of the learner; empty to choose half of them.
        others: Wanted cores of all other processes; empty for those the learner does not take.

    Returns:
        Learner cores and other cores; they overlap only on a one-core machine or when asked for.

    Raises:
        ConfigError: A wanted core does not exist here.

    Example:
        >>> divide_cpus([0, 1])
        ((0,), (1,))
    """
    missing = sorted((set(learner) | set(others)) - set(available))
    if missing:
        raise ConfigError(
            "launch.learner_cpus or launch.other_cpus names a core that this process may not use",
            got=missing,
            limit=sorted(available),
            remedy="Leave both empty to divide the cores automatically.",
        )
    ordered = sorted(available)
    half = max(1, len(ordered) // 2)
    mine = tuple(learner) or tuple(c for c in ordered if c not in others)[:half] or tuple(ordered)
    rest = tuple(others) or tuple(c for c in ordered if c not in mine) or mine
    return mine, rest


def share_of(cpus: Sequence[int], index: int, number: int) -> tuple[int, ...]:
    """Return the cores of one of several processes that divide cores; all of them where there are too few.

    Example:
        >>> share_of((0, 1, 2, 3), 1, 2), share_of((0,), 1, 2)
        ((2, 3), (0,))
    """
    if len(cpus) < number:
        return tuple(cpus)
    return tuple(cpus[index * len(cpus) // number : (index + 1) * len(cpus) // number])


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a process that trains needs in its environment so that large arrays lie in huge pages.

    On a CPU, XLA allocates the temporary memory of a program at every call and gives it back: gigabytes that
    the kernel hands out and clears page by page, each time. Where the kernel has no huge pages to give, or
    another C library is used, nothing changes; what the environment says already has the last word.

    Args:
        environ: The environment that the process would have.

    References:
        GNU C library manual, Memory allocation tunables, glibc.malloc.hugetlb (2.35 and later).

    Example:
        >>> with_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
        {'GLIBC_TUNABLES': 'glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1'}
    """
    given = environ.get(TUNABLES_VARIABLE, "")
    if _HUGE_PAGES in given:
        return {}
    return {TUNABLES_VARIABLE: ":".join(filter(None, (given, f"{_HUGE_PAGES}=1")))}


def share_one_heap() -> None:
    """Let all threads to come allocate from one heap, which can grow to any size; see `keep_freed_memory`.

    Call it before JAX starts its threads. A heap of a thread's own holds 64 MB, and what is larger would be
    mapped alone and unmapped again. Where `GLIBC_TUNABLES` sets the number of heaps, that stays.
    """
    _allocate(("glibc.malloc.arena_max",), {_M_ARENA_MAX: 1})


def keep_freed_memory() -> None:
    """Keep the memory that is freed from now on for what will be allocated next.

    On a CPU, XLA allocates the temporary memory of a program at every call and frees it afterwards. Given
    back, it must be handed out and cleared anew, and on a virtual machine that reports free pages to its host
    be fetched from there after two seconds of rest (decision 0064). Kept, it costs what the largest call
    needed, and what no later block fits into. What `GLIBC_TUNABLES` says of it stays; another C library than
    glibc does as it does.

    References:
        mallopt(3); Linux, Documentation/mm/free_page_reporting.rst.
    """
    _allocate(
        ("glibc.malloc.mmap_max", "glibc.malloc.trim_threshold"), {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
    )


def _allocate(tunables: Sequence[str], options: Mapping[int, int]) -> None:
    given = os.environ.get(TUNABLES_VARIABLE, "")
    if any(name in given for name in tunables):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


def settle_in() -> None:
    """Apply the placement that the supervisor put into the environment, and die when it dies."""
    cpus = os.environ.get(CPUS_VARIABLE, "")
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    parent = os.environ.get(PARENT_VARIABLE, "")
    if parent:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it died before the request reached the kernel
            os.kill(os.getpid(), signal.SIGKILL)


def move_thread_to(cpus: Sequence[int]) -> None:
    """Move the calling thread alone to other cores, away from this process's computation."""
    if cpus:
        os.sched_setaffinity(0, set(cpus))
