"""What the trace costs: CPU time with it and without it, alternating in one process, so that load hits both.

    .venv/bin/python benchmarks/tracing.py --json [--quick] [--run RUN]

`slice_us` is the CPU time of recording one slice, encoding and writing included. `actor` is a pool that runs
calculator episodes against a generator and an environment that answer at once over a memory store: nothing
but the actor's own work, so the worst case. `feed` takes, packs and records batches of 128 trajectories, and
notes them as trained. `learner` is whole steps of the calculator's learner, from the store to the optimizer
with everything that a run measures, in pairs with and without the trace, either first in turn: the median of
the pairs' ratios and its 95 % interval, in wall time and in CPU time. `--run` counts what the processes of a
run recorded, and what share of a core that took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.batching.batch import Batch
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.chat import Chat, small_chat
from forebay.cli.comparison import CONFIG
from forebay.cli.learner_parts import initial_params, make_parts
from forebay.cli.learner_telemetry import LearnerTelemetry
from forebay.cli.runs import own_run
from forebay.clock import SystemClock
from forebay.config import load_config
from forebay.envs.calculator import Calculator
from forebay.envs.registry import EnvironmentKind
from forebay.envs.settings import EnvironmentSettings
from forebay.generation.protocol import Completion, GenerationRequest, GeneratorInfo
from forebay.learner.feed import Feed
from forebay.learner.loop import Learner
from forebay.learner.step_trace import StepTrace
from forebay.objectives.advantages import by_group, group_mean
from forebay.staleness import Fork, StalenessSettings
from forebay.store import GroupSpec, Slot, StoreSettings, TakenGroup, open_store
from forebay.store.rules import RuleStore
from forebay.telemetry.settings import TelemetrySettings
from forebay.telemetry.trace import OFF, ProcessRecord, SliceRecord, Tracer, read_trace
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    Sequence,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
)

_GROUP_SIZE = 4
_BATCH_GROUPS = 32
# Small batches: an overhead that does not grow with them shows most there.
_STEP_GROUPS = 8
_STEPS_BEFORE = 3
_ORIGIN = PolicyVersion(0, 0)
Groups = tuple[TakenGroup, ...]


class Ready:
    """A generator that says the next line of a script at once."""

    def __init__(self, chat: Chat, lines: tuple[str, ...]) -> None:
        self._answers = [
            np.append(chat.encode(line), np.int32(chat.stop_tokens[0])).astype(np.int32) for line in lines
        ]
        self._vocabulary = chat.vocabulary

    async def generate(self, request: GenerationRequest) -> Completion:
        """Answer a turn."""
        await asyncio.sleep(0.0)
        tokens = self._answers[int(request.request_id.rpartition(".")[2]) % len(self._answers)]
        return Completion(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.5, np.float32),
            version_spans=(VersionSpan(len(tokens), _ORIGIN, _ORIGIN),),
            finish="stop",
            wait_s=0.0,
            generate_s=0.0,
        )

    async def abort(self, request_id: str) -> None:
        """Forget a request."""

    async def release(self, episode_id: str) -> None:
        """Forget an episode."""

    async def info(self) -> GeneratorInfo:
        """Return the limits."""
        return GeneratorInfo(version=_ORIGIN, context=256, vocabulary=self._vocabulary, model="ready")

    async def close(self) -> None:
        """Nothing is open."""


def actor_cpu_s(num_groups: int, tracer: Tracer) -> float:
    """Return the CPU time of running some groups."""

    async def close() -> None:
        pass

    settings = EnvironmentSettings(name="calculator")
    kind = EnvironmentKind("calculator", settings, lambda _: Calculator(), close)
    store = open_store(StoreSettings(engine="memory"), "run", SystemClock())
    store.rewind(0)
    store.dispatch([_group(serial) for serial in range(num_groups)], incarnation=0)
    chat = small_chat()
    pool = ActorPool(
        store=store,
        generator=Ready(chat, ("17+25=", "42*3=", "#126")),
        chat=chat,
        environments={"calculator": kind},
        settings=ActorSettings(episodes_per_process=64, max_turn_tokens=32),
        run_seed=7,
        name="actor-0",
        clock=SystemClock(),
        tracer=tracer,
    )

    async def main() -> float:
        began_s = time.process_time()
        running = asyncio.create_task(pool.run())
        while pool.counters["receipts.accepted"] < num_groups * _GROUP_SIZE:
            await asyncio.sleep(0.01)
        taken_s = time.process_time() - began_s
        pool.drain()
        await running
        return taken_s

    return asyncio.run(main())


def measure_actor(directory: Path, num_rounds: int, num_groups: int) -> dict[str, float]:
    """Return CPU time per episode without a trace, and the ratio with one."""
    num_episodes = num_groups * _GROUP_SIZE
    default = TelemetrySettings().trace_every
    times_s: dict[str, list[float]] = {"off": [], "default": [], "all": []}
    actor_cpu_s(num_groups, OFF)
    for number in range(num_rounds):
        order = list(times_s)[:: 1 if number % 2 else -1]
        for name in order:
            every = default if name == "default" else 1
            path = directory / f"actor-{name}-{number}.jsonl"
            tracer = OFF if name == "off" else Tracer(path, "actor", SystemClock(), every=every)
            times_s[name].append(actor_cpu_s(num_groups, tracer))
            tracer.flush()
    pairs = {
        name: [with_s / without_s for with_s, without_s in zip(times_s[name], times_s["off"], strict=True)]
        for name in ("default", "all")
    }
    return {
        "episode_us": 1e6 * statistics.median(times_s["off"]) / num_episodes,
        "ratio": statistics.median(pairs["default"]),
        "ratio_all_followed": statistics.median(pairs["all"]),
    }


def measure_slice_us(directory: Path, num_slices: int) -> float:
    """Return the CPU time of recording one slice with a member and an argument."""
    tracer = Tracer(directory / "slices.jsonl", "x", SystemClock())
    began_s = time.process_time()
    for number in range(num_slices):
        tracer.slice("decode", 1.0, 2.0, track="generator", members=("g1.0",), arguments={"tokens": number})
    tracer.close()
    return 1e6 * (time.process_time() - began_s) / num_slices


def feed_cpu_s(feed: Feed, steps: StepTrace, store: RuleStore, version: int) -> float:
    """Return the CPU time of feeding one batch; its groups are dispatched and filled beforehand."""
    specs = [_group(version * _BATCH_GROUPS + i) for i in range(_BATCH_GROUPS)]
    store.dispatch(specs, incarnation=0)
    for slot in store.claim(_BATCH_GROUPS * _GROUP_SIZE, ttl_s=60.0, actor="a", version=_ORIGIN):
        store.put(_trajectory(slot), slot)
    began_s = time.thread_time()
    batch = feed.next(version, threading.Event())
    assert batch is not None
    steps.add(batch, PolicyVersion(0, version + 1), (), 0.001)
    taken_s = time.thread_time() - began_s
    store.publish(PolicyVersion(0, version + 1), incarnation=0)
    return taken_s


def measure_feed(directory: Path, num_batches: int) -> dict[str, float]:
    """Return CPU time per batch without a trace, and the ratio with one, from batch to batch in turns."""
    clock, staleness = SystemClock(), StalenessSettings(max_staleness=10_000)
    batching = BatchingSettings(groups=_BATCH_GROUPS, group_size=_GROUP_SIZE, max_length=256, rows=8)
    store = open_store(StoreSettings(engine="memory"), "run", clock)
    store.rewind(0)

    def pack(
        groups: tuple[TakenGroup, ...], now: PolicyVersion, forks: tuple[Fork, ...], packing: bytes
    ) -> tuple[Batch, ...]:
        return build_updates(
            groups,
            now=now,
            forks=forks,
            staleness=staleness,
            settings=batching,
            ladder=ladder,
            advantage=by_group(group_mean),
            denominator=lambda counts: float(counts.tokens),
        )

    ladder = build_ladder(batching, 1)
    tracer = Tracer(directory / "learner.jsonl", "learner", clock, every=TelemetrySettings().trace_every)
    feed = Feed(
        store, 0, (), pack, staleness, _BATCH_GROUPS, 1, lambda _: None, clock=clock, tracer=tracer
    )  # fmt: skip
    steps = StepTrace(tracer, clock)
    times_s: dict[bool, list[float]] = {True: [], False: []}
    for version in range(num_batches):
        tracer.enabled = version % 2 == 0
        times_s[tracer.enabled].append(feed_cpu_s(feed, steps, store, version))
    with_s, without_s = (statistics.median(times_s[traced]) for traced in (True, False))
    return {"batch_us": 1e6 * without_s, "added_us": 1e6 * (with_s - without_s), "ratio": with_s / without_s}


def measure_steps(directory: Path, num_pairs: int) -> dict[str, Any]:
    """Return the time of a learner's step without a trace, and the ratio with one, over pairs of steps."""
    config = load_config(
        CONFIG,
        [f"run.directory={directory}", "run.name=steps", f"batching.groups={_STEP_GROUPS}",
         f"staleness.max_staleness={4 * num_pairs}"],
    )  # fmt: skip
    owned, run = own_run(config)
    clock = SystemClock()
    with ExitStack() as stack:
        stack.enter_context(owned)
        store = open_store(StoreSettings(engine="memory"), "run", clock)
        store.rewind(0)
        told = LearnerTelemetry(run, store.stats, lambda: 0, lambda: None, clock, stack)
        parts = make_parts(run)
        parts.warm_up()
        state = parts.programs.init_state(initial_params(run))
        learner = Learner(
            parts.programs, state, _ORIGIN, config.learner, told.strip, told.accounts, parts.annotators(None),
            lambda *_: None, lambda *_: None,
        )  # fmt: skip
        feed = Feed(
            store, 0, (), parts.pack, config.staleness, _STEP_GROUPS, 1, lambda _: None,
            clock=clock, tracer=told.tracer,
        )  # fmt: skip
        for _ in range(_STEPS_BEFORE):
            step_s(feed, learner, store)
        pairs = []
        for number in range(num_pairs):
            times = {}
            for traced in (True, False) if number % 2 else (False, True):
                told.tracer.enabled = traced
                times[traced] = step_s(feed, learner, store)
            pairs.append((times[True], times[False]))
    return {
        "pairs": num_pairs,
        "step_s": statistics.median(without.wall_s for _, without in pairs),
        "wall": ratio_of([with_.wall_s / without.wall_s for with_, without in pairs]),
        "cpu": ratio_of([with_.cpu_s / without.cpu_s for with_, without in pairs]),
    }


class StepTime(NamedTuple):
    """How long a step took: on the wall, and of this process's threads."""

    wall_s: float
    cpu_s: float


def step_s(feed: Feed, learner: Learner, store: RuleStore) -> StepTime:
    """Take one step; its groups are dispatched and filled beforehand."""
    version = learner.version.version
    specs = [_group(version * _STEP_GROUPS + i) for i in range(_STEP_GROUPS)]
    store.dispatch(specs, incarnation=0)
    for slot in store.claim(_STEP_GROUPS * _GROUP_SIZE, ttl_s=600.0, actor="a", version=_ORIGIN):
        store.put(_trajectory(slot), slot)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    batch = feed.next(version, threading.Event())
    assert batch is not None
    learner.train(batch)
    learner.publish()
    taken = StepTime(time.perf_counter() - began_s, time.process_time() - began_cpu_s)
    store.publish(learner.version, incarnation=0)
    return taken


def ratio_of(ratios: list[float]) -> dict[str, float]:
    """Return the median of some ratios, and the order statistics that hold it with 95 % confidence."""
    ordered, count = sorted(ratios), len(ratios)
    # The number of ratios below the true median is binomial: its normal quantiles are the ranks.
    lowest = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    return {
        "ratio": statistics.median(ordered),
        "low": ordered[lowest],
        "high": ordered[count - 1 - lowest],
    }


def _group(serial: int) -> GroupSpec:
    return GroupSpec(
        group_id=f"g{serial:08d}",
        serial=serial,
        task=Task(task_id="t", environment="calculator", payload={"expression": "17+25*3"}),
        group_size=_GROUP_SIZE,
        min_group_size=_GROUP_SIZE,
        min_version=_ORIGIN,
        deadline_s=300.0,
        member_bytes=1 << 16,
    )


def _trajectory(slot: Slot) -> Trajectory:
    sequence = Sequence(
        tokens=np.arange(200, dtype=np.int32) % 60,
        action_spans=(ActionSpan(150, 200, 0),),
        behavior_logprobs=np.full(50, -0.5, np.float32),
        version_spans=(VersionSpan(50, _ORIGIN, _ORIGIN),),
        sampling=Sampling(),
    )
    return Trajectory(
        trajectory_id=f"{slot.group_id}.{slot.member}.{slot.attempt}",
        run_id="run",
        incarnation=0,
        group_id=slot.group_id,
        group_size=slot.group_size,
        member=slot.member,
        attempt=slot.attempt,
        task_id="t",
        environment="calculator",
        sequences=(sequence,),
        steps=(StepRecord(1.0, "stop", 0.0, 0.1, 0.2),),
        reward=float(slot.member),
        terminated=True,
        truncated=False,
        finish="terminated",
        started_s=0.0,
        finished_s=1.0,
    )


def examine(run: Path, slice_us: float) -> dict[str, dict[str, float]]:
    """Return what each process of a run recorded, and the share of a core that this took."""
    found = {}
    for path in sorted((run / "trace").glob("*.jsonl")):
        records = list(read_trace(path))
        slices = [record for record in records if isinstance(record, SliceRecord)]
        if not slices or not isinstance(records[0], ProcessRecord):
            continue
        last_ns = max(record.began_ns + record.duration_ns for record in slices)
        seconds = last_ns / 1e9 - records[0].monotonic_s
        per_s = len(records) / seconds
        found[records[0].role] = {
            "records_per_s": per_s,
            "bytes_per_s": path.stat().st_size / seconds,
            "core_share": per_s * slice_us / 1e6,
        }
    return found


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object (always done)")
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--run", type=Path, help="a run with a trace")
    options = parser.parse_args()
    rounds, groups = (40, 25) if options.quick else (200, 25)
    with tempfile.TemporaryDirectory() as scratch:
        result: dict[str, Any] = {"slice_us": measure_slice_us(Path(scratch), 50_000)}
        result["feed"] = measure_feed(Path(scratch), 100 if options.quick else 400)
        result["learner"] = measure_steps(Path(scratch), 12 if options.quick else 150)
        result["actor"] = measure_actor(Path(scratch), rounds, groups)
    if options.run:
        result["run"] = examine(options.run, result["slice_us"])
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
