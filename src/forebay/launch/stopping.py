"""Ending processes: asked first, killed when their time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forebay.clock import Clock
from forebay.launch.child import Child

_POLL_S = 0.05


def stop_all(
    children: Iterable[Child],
    clock: Clock,
    grace_s: float,
    on_tick: Callable[[], None],
    hurried: Callable[[], bool],
) -> bool:
    """Ask processes to end, and kill those that do not.

    Args:
        children: Those that live are ended.
        clock: Source of time.
        grace_s: How long they may take.
        on_tick: Called while they do.
        hurried: Whether they are to be killed at once.

    Returns:
        Whether one had to be killed.
    """
    processes = [child.process for child in children if child.process and child.alive]
    for process in processes:
        process.terminate()
    deadline_s = clock.monotonic_s() + grace_s
    while any(p.poll() is None for p in processes) and not hurried():
        if clock.monotonic_s() >= deadline_s:
            break
        on_tick()
        clock.sleep(_POLL_S)
    late = [process for process in processes if process.poll() is None]
    for process in late:
        process.kill()
    for process in processes:
        process.wait()
    return bool(late)
