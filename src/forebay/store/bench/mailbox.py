"""The baseline that needs no store: encoded trajectories through a `multiprocessing.Queue`."""

from __future__ import annotations

import time
from queue import Empty, Full
from typing import Any

import msgspec

from forebay.store.bench.processes import Body, Gate, Pace, Sample, Window, work
from forebay.store.bench.workload import make_branch, make_specs, make_trajectory
from forebay.store.protocol import Slot
from forebay.trajectory import PolicyVersion
from forebay.wire import decode, encode

_WAIT_S = 0.05


class MailJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is given.

    Args:
        queue: The bounded queue that all share.
        payload_bytes: Size of a trajectory.
        in_flight: Threads of a writer.
        puts_per_s: Puts of this writer; 0 for as many as possible.
    """

    queue: Any
    payload_bytes: int
    in_flight: int
    puts_per_s: float = 0.0


def post(job: MailJob, gate: Gate) -> Sample:
    """Encode trajectories and put them into the queue; nothing survives a crash."""
    branch, slot = make_branch(job.payload_bytes), _slot()

    def posting(thread: int) -> Body:
        interval_s = job.in_flight / job.puts_per_s if job.puts_per_s else 0.0

        def put(window: Window) -> list[float]:
            pace = Pace(interval_s, window.warm_s + interval_s * thread / job.in_flight)
            latencies = []
            while (began_s := pace.wait()) < window.end_s:
                frame = encode(make_trajectory(branch, slot, began_s))
                if _posted(job.queue, frame, window) and window.holds(ended_s := time.monotonic()):
                    latencies.append(ended_s - began_s)
            return latencies

        return put

    try:
        return work(gate.pass_through(), list(map(posting, range(job.in_flight))))
    finally:
        job.queue.cancel_join_thread()


def _posted(queue: Any, frame: bytes, window: Window) -> bool:
    while time.monotonic() < window.end_s:
        try:
            queue.put(frame, timeout=_WAIT_S)
        except Full:
            continue
        return True
    return False


def collect(job: MailJob, gate: Gate) -> Sample:
    """Take trajectories out of the queue and decode them."""

    def take(window: Window) -> list[float]:
        latencies = []
        while time.monotonic() < window.end_s:
            try:
                trajectory = decode(job.queue.get(timeout=_WAIT_S))
            except Empty:
                continue
            ended_s = time.monotonic()
            if window.holds(ended_s):
                latencies.append(ended_s - trajectory.finished_s)
        return latencies

    return work(gate.pass_through(), [take])


def _slot() -> Slot:
    spec = make_specs(0, 1, 1)[0]
    return Slot(
        group_id=spec.group_id,
        member=0,
        attempt=0,
        task=spec.task,
        group_size=spec.group_size,
        incarnation=0,
        min_version=PolicyVersion(0, 0),
        lease_expires_s=0.0,
        group_deadline_s=0.0,
        run_id="bench",
    )
