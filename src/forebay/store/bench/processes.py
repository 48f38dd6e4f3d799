"""Processes that do one thing until a moment agreed in advance, and report how often, how fast, at what cost.

All of them read the same monotonic clock, so that a window is the same time for each.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.errors import StoreError

_READY_TIMEOUT_S = 120.0
_RESULT_TIMEOUT_S = 120.0
_HEAD_START_S = 0.05
# Processes begin as new interpreters: nothing is inherited that an engine must not share.
SPAWN = multiprocessing.get_context("spawn")


class Window(NamedTuple):
    """When work begins, and between which moments it counts; monotonic seconds.

    Args:
        warm_s: Work begins.
        start_s: It counts from here on.
        end_s: It ends.
    """

    warm_s: float
    start_s: float
    end_s: float

    def holds(self, moment_s: float) -> bool:
        """Return whether something that ended at `moment_s` counts."""
        return self.start_s <= moment_s < self.end_s


class Sample(NamedTuple):
    """What one process did within the window.

    Args:
        done: Trajectories or records.
        cpu_s: CPU time of the process, all threads.
        latencies_s: One value for each that was timed.
    """

    done: int
    cpu_s: float
    latencies_s: npt.NDArray[np.float64]


class Pace:
    """When the next piece of work is due.

    Args:
        interval_s: Seconds between two pieces; 0 for as fast as possible.
        first_s: When the first one is due.
    """

    def __init__(self, interval_s: float, first_s: float) -> None:
        self._interval_s, self._due_s = interval_s, first_s

    def wait(self) -> float:
        """Wait until it is due; return the moment that its latency counts from.

        A piece that could not begin in time counts from when it was due, so that a stall is not hidden by
        the work that it held up.
        """
        now_s = time.monotonic()
        if not self._interval_s:
            return now_s
        due_s, self._due_s = self._due_s, self._due_s + self._interval_s
        if due_s > now_s:
            time.sleep(due_s - now_s)
        return due_s

    def wait_for_some(self, most: int) -> list[float]:
        """Wait until one is due; return the moments of all that are due by then, at most `most`.

        Where nothing is paced, `most` are due at once.
        """
        due_s = [self.wait()]
        if not self._interval_s:
            return due_s * most
        now_s = time.monotonic()
        while len(due_s) < most and self._due_s <= now_s:
            due_s.append(self._due_s)
            self._due_s += self._interval_s
        return due_s


class Gate:
    """Where a process says that it is ready, and learns the window.

    Args:
        pipe: To the process that started it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def pass_through(self) -> Window:
        """Return the window, once everybody is ready."""
        self._pipe.send(None)
        return Window(*self._pipe.recv())


# The latencies of what one thread finished within the window; a value below 0 was done but not timed.
Body = Callable[[Window], list[float]]
Role = Callable[[Any, Gate], Sample]


def work(window: Window, bodies: Sequence[Body]) -> Sample:
    """Run bodies in threads of this process; measure its CPU time within the window."""
    found: list[list[float]] = [[] for _ in bodies]
    errors: list[Exception] = []

    def run(number: int, body: Body) -> None:
        try:
            found[number] = body(window)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(bodies)]
    sleep_until(window.warm_s)
    for thread in threads:
        thread.start()
    sleep_until(window.start_s)
    before_s = time.process_time()
    sleep_until(window.end_s)
    cpu_s = time.process_time() - before_s
    for thread in threads:
        thread.join(_RESULT_TIMEOUT_S)
    if errors:
        raise errors[0]
    every = np.array([latency for part in found for latency in part])
    return Sample(len(every), cpu_s, every[every >= 0.0])


def sleep_until(moment_s: float) -> None:
    """Sleep until a monotonic moment."""
    time.sleep(max(0.0, moment_s - time.monotonic()))


def run_processes(
    roles: Sequence[tuple[Role, Any]],
    warm_s: float,
    window_s: float,
    on_start: Callable[[float, float], None] = lambda start_s, end_s: None,
) -> list[Sample]:
    """Run each role in a process of its own, all within the same window.

    Args:
        roles: What each process does, and what it is given.
        warm_s: Seconds of work before the window.
        window_s: Seconds that count.
        on_start: Called with the beginning and the end of the window, before either.

    Returns:
        One sample a role, in order.

    Raises:
        StoreError: A process failed; its traceback is on stderr.
    """
    pipes = []
    processes = []
    try:
        for role, job in roles:
            mine, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=_run_role, args=(role, job, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe, _READY_TIMEOUT_S)
        begin_s = time.monotonic() + _HEAD_START_S
        on_start(begin_s + warm_s, begin_s + warm_s + window_s)
        for pipe in pipes:
            pipe.send((begin_s, begin_s + warm_s, begin_s + warm_s + window_s))
        samples = [_receive(pipe, warm_s + window_s + _RESULT_TIMEOUT_S) for pipe in pipes]
        return [Sample(*sample) for sample in samples]
    finally:
        for process in processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()


def _run_role(role: Role, job: Any, pipe: Connection) -> None:
    # Ctrl-C is for the process that started this one, which ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send(tuple(role(job, Gate(pipe))))


def _receive(pipe: Connection, timeout_s: float) -> Any:
    try:
        if pipe.poll(timeout_s):
            return pipe.recv()
    except EOFError:
        raise StoreError("a process of the benchmark failed", remedy="Its error is above.") from None
    raise StoreError("a process of the benchmark does not answer", limit=f"{timeout_s:.0f} s")
