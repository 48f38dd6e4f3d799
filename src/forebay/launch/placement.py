"""Which cores a process may use. Affinity must be set before XLA starts: it sizes its thread pool once."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence

from forebay.errors import ConfigError

CPUS_VARIABLE = "FOREBAY_CPUS"
PARENT_VARIABLE = "FOREBAY_PARENT"
_PR_SET_PDEATHSIG = 1


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
