"""Processes that live and die together: once one has failed, all end, and one cause is named for them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from forebay.clock import Clock
from forebay.launch.child import Child

Member = TypeVar("Member")

_POLL_S = 0.05
# How a process ends when it notices that another is gone: by our watch, or JAX's.
_NOTICED = (4, -signal.SIGABRT)


def end_gang(
    children: Sequence[Child], clock: Clock, grace_s: float, on_tick: Callable[[], None]
) -> dict[Child, int]:
    """Wait until all processes of a gang have ended, and kill those that do not.

    Args:
        children: The gang; at least one has ended.
        clock: Source of time.
        grace_s: How long they may take.
        on_tick: Called while they do.

    Returns:
        The exit codes of those that ended by themselves.
    """
    deadline_s = clock.monotonic_s() + grace_s
    while any(child.alive for child in children) and clock.monotonic_s() < deadline_s:
        on_tick()
        clock.sleep(_POLL_S)
    ended = {child: child.process.poll() for child in children if child.process is not None}
    for child in children:
        if child.process is not None and child.alive:
            child.process.kill()
            child.process.wait()
    return {child: code for child, code in ended.items() if code is not None}


def to_blame(codes: Mapping[Member, int]) -> Member:
    """Return who is to blame: the others fail because they notice that one of them is gone.

    Args:
        codes: Exit codes, in the order of the gang; one of them at least is not 0.

    Example:
        >>> to_blame({"learner": 4, "learner-1": -9}), to_blame({"learner": 4, "learner-1": 0})
        ('learner-1', 'learner')
    """
    failed = {member: code for member, code in codes.items() if code != 0}
    return next((member for member, code in failed.items() if code not in _NOTICED), next(iter(failed)))
