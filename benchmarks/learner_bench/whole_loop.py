"""The whole loop of `forebay learn` beside the bare step, on the same batches, in turns.

The loop is the product's own session, with everything it does in a run: an LMDB store that survives power
loss, the feed that takes, unpacks, packs and journals a batch ahead, the copy to the device, the step,
metrics, samples and trace, a published version after every batch, checkpoints, and the acknowledgment that
lets the store forget. Its threads run on another core, as `forebay train` places them. Only the actors are
missing: the store is filled before the first batch, so that none is waited for.

After each round of batches the bare step is timed: the same compiled programs on the same batches, whose rows
already lie on the device, from the same session. Whatever the loop still has to do in the background is
waited for before, and reported: it is not hidden behind the bare step.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from benchmarks.learner_bench.measuring import Spread, Timed, spread
from benchmarks.learner_bench.plan import LoopCase
from benchmarks.learner_bench.shapes import MODELS
from forebay.cli.learner_parts import make_dispatcher
from forebay.cli.learning import LearnerSession
from forebay.cli.runs import Run, own_run
from forebay.config import RunConfig, load_config
from forebay.launch.placement import move_thread_to
from forebay.learner.accounts import Accounts
from forebay.learner.feed import JournaledBatch
from forebay.learner.train_step import StepStats
from forebay.store import Slot
from forebay.store.bench.workload import make_trajectory
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.spans import TimeShares
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, Trajectory, VersionSpan
from forebay.trajectory import Sequence as Branch

_GROUP_SIZE = 4
_CLAIMED = 256
_IDLE_S, _LOOK_S, _MAX_WAIT_S = 0.2, 0.05, 120.0


class Round(NamedTuple):
    """Some batches trained by the loop, then the same by the bare step.

    Attributes:
        loop: Time of the loop; CPU time of the learner's core alone.
        bare: Time of the bare step.
        drain_s: How long it took, in between, until nothing was left to do in the background.
        waits_s: Time of the loop outside the compiled programs, by state.
    """

    loop: Timed
    bare: Timed
    drain_s: float
    waits_s: dict[str, float]


class LoopFigures(NamedTuple):
    """What the loop makes of the step's speed.

    Attributes:
        case: What was run.
        tokens: Of a batch on average, padding left out.
        step_s: The bare step of a batch, seconds on the wall.
        speed: The loop's speed as a share of the bare step's, on the wall, by rounds.
        speed_cpu: The same of the CPU time that was spent on the learner's core: without waits.
        speed_drained: As `speed`, with the time until nothing was left to do counted to the loop's.
        outside: Share of the loop's time by what it did outside the compiled programs.
        drain_s: How long the background still worked behind a round, on average.
        checkpoint_write_s: How long a checkpoint took in the background; None if none was reported in time.
        trained: Trajectories that the journal holds, and those that the store had accepted.
    """

    case: LoopCase
    tokens: float
    step_s: float
    speed: Spread
    speed_cpu: Spread
    speed_drained: Spread
    outside: dict[str, float]
    drain_s: float
    checkpoint_write_s: float | None
    trained: tuple[int, int]


class Alternation:
    """Is told of every trained batch; behind each round of them it times the bare step on the same batches.

    Args:
        session: The learner.
        case: How many batches make a round.
        background: Cores of the threads beside the step; those on others are the step's.
    """

    def __init__(self, session: LearnerSession, case: LoopCase, background: Sequence[int]) -> None:
        self.rounds: list[Round] = []
        self.tokens: list[int] = []
        self._session = session
        self._case = case
        # Where all threads share the cores, none can be told from the step's.
        self._background = set(background) - os.sched_getaffinity(0)
        self._batches: list[JournaledBatch] = []
        self._accumulator: Any = None
        self._warm = False

    def begin(self) -> None:
        """Start the clock of a round."""
        self._before = self._session.strip.read()
        self._began = Timed(time.perf_counter(), self._own_cpu_s())

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Note a batch of the loop; every so many are a round."""
        self._batches.append(batch)
        self.tokens.append(sum(update.num_tokens for update in batch.updates))
        if len(self._batches) < self._case.batches:
            return
        loop = self._since(self._began)
        waits = _outside(self._session.strip.read().minus(self._before))
        drain_s = self._drain()
        bare = self._bare()
        if self._warm:
            self.rounds.append(Round(loop, bare, drain_s, waits))
        self._warm = True
        self._batches.clear()
        self.begin()

    def _bare(self) -> Timed:
        learner = self._session.learner
        programs = learner.programs
        if self._accumulator is None:
            self._accumulator = programs.zeros()
        updates = [update for batch in self._batches for update in batch.updates if not update.empty]
        placed = [[programs.place(micro.rows) for micro in update.micro_batches] for update in updates]
        jax.block_until_ready((placed, self._accumulator))
        began = Timed(time.perf_counter(), self._own_cpu_s())
        for update, rows in zip(updates, placed, strict=True):
            for one in rows:
                self._accumulator = programs.accumulate(
                    learner.state.params, self._accumulator, one, update.denominator, update.num_tokens
                )
            learner.state, self._accumulator, stats = programs.apply(learner.state, self._accumulator)
            jax.block_until_ready(stats)
        return self._since(began)

    def _since(self, began: Timed) -> Timed:
        return Timed(time.perf_counter() - began.wall_s, self._own_cpu_s() - began.cpu_s)

    def _drain(self) -> float:
        """Wait until the threads in the background have nothing to do; return how long that took."""
        began_s = last_s = time.monotonic()
        self._session.publisher.flush()
        self._session.checkpointer.wait()
        spent = -1.0
        while time.monotonic() - last_s < _IDLE_S and time.monotonic() - began_s < _MAX_WAIT_S:
            now = sum(cpu_s for cpu_s, cpus in _threads() if cpus <= self._background)
            if now - spent > 0.1 * _LOOK_S:
                spent, last_s = now, time.monotonic()
            time.sleep(_LOOK_S)
        return last_s - began_s

    def _own_cpu_s(self) -> float:
        """Return the CPU time of the threads on the learner's core."""
        return sum(cpu_s for cpu_s, cpus in _threads() if not cpus <= self._background)


def measure_loop(case: LoopCase, scratch: Path, background: Sequence[int]) -> LoopFigures:
    """Run the loop and the bare step in turns.

    Args:
        case: What to run.
        scratch: A directory for the run.
        background: Cores of the threads beside the step.
    """
    owned, run = own_run(run_config(case, scratch))
    with ExitStack() as stack:
        stack.enter_context(owned)
        session = LearnerSession(run, functools.partial(move_thread_to, background), stack)
        alternation = Alternation(session, case, background)
        session.telemetry.accounts = Accounts(session.telemetry.accounts, alternation)
        session.resume()
        fill(run, session, case)
        alternation.begin()
        session.train()
        session.publisher.flush()
        session.checkpointer.wait()
        return _figures(case, alternation, session)


def run_config(case: LoopCase, scratch: Path) -> RunConfig:
    """Return the configuration of the run: defaults, but for sizes and what `case` says."""
    model, longest = MODELS[case.model], case.episode_tokens[1]
    sizes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
    return load_config(
        None,
        [
            f"run.directory={scratch}",
            "run.name=loop",
            *(f"model.{name}={getattr(model, name)}" for name in sizes),
            f"model.vocab_multiple={model.vocab_size}",
            f"model.max_position={max(longest, 16)}",
            f"generator.context={longest}",
            f"batching.groups={case.groups}",
            f"batching.group_size={_GROUP_SIZE}",
            f"batching.max_length={longest}",
            f"batching.row_length={case.row_tokens}",
            "batching.rows=1",
            "batching.max_programs=1",
            f"staleness.max_staleness={case.steps}",
            f"learner.steps={case.steps}",
            f"learner.checkpoint_every={case.checkpoint_every}",
        ],
    )


def fill(run: Run, session: LearnerSession, case: LoopCase) -> None:
    """Dispatch every group of the run and answer it."""
    dispatcher = make_dispatcher(run.config, session.store, session.incarnation, session.last_version)
    num_groups = dispatcher.top_up()
    dispatcher.stop()
    wanted = run.config.learner.steps * run.config.batching.groups
    if num_groups != wanted:
        raise RuntimeError(f"the credit allows {num_groups} groups, not {wanted}")
    rng = np.random.default_rng(run.config.run.seed)
    version = session.learner.version
    while slots := session.store.claim(_CLAIMED, ttl_s=600.0, actor="scripted", version=version):
        for slot in slots:
            num_tokens = int(rng.integers(case.episode_tokens[0], case.episode_tokens[1] + 1))
            session.store.put(_episode(run, slot, version, num_tokens, rng), slot)


def _episode(
    run: Run, slot: Slot, version: PolicyVersion, num_tokens: int, rng: np.random.Generator
) -> Trajectory:
    """Return an episode of random tokens of which the later half was sampled."""
    start = num_tokens // 2
    num_actions = num_tokens - start
    branch = Branch(
        tokens=rng.integers(0, run.model.num_real_tokens, num_tokens, dtype=np.int32),
        action_spans=(ActionSpan(start, num_tokens, 0),),
        behavior_logprobs=rng.normal(-4.0, 0.5, num_actions).astype(np.float32),
        version_spans=(VersionSpan(num_actions, version, version),),
        sampling=Sampling(),
    )
    return msgspec.structs.replace(make_trajectory(branch, slot), reward=float(rng.integers(0, 2)))


def _figures(case: LoopCase, alternation: Alternation, session: LearnerSession) -> LoopFigures:
    rounds, counters = alternation.rounds, session.store.stats().counters
    wall_s = sum(one.loop.wall_s for one in rounds)
    states = sorted({state for one in rounds for state in one.waits_s})
    lines = list(read_metrics(session.run.layout.metrics))
    writes = [line["checkpoint.write_s"] for line in lines if "checkpoint.write_s" in line]
    return LoopFigures(
        case=case,
        tokens=float(np.mean(alternation.tokens)),
        step_s=float(np.median([one.bare.wall_s for one in rounds])) / case.batches,
        speed=spread([one.bare.wall_s / one.loop.wall_s for one in rounds]),
        speed_cpu=spread([one.bare.cpu_s / one.loop.cpu_s for one in rounds]),
        speed_drained=spread([one.bare.wall_s / (one.loop.wall_s + one.drain_s) for one in rounds]),
        outside={state: sum(one.waits_s.get(state, 0.0) for one in rounds) / wall_s for state in states},
        drain_s=float(np.mean([one.drain_s for one in rounds])),
        checkpoint_write_s=float(np.mean(writes)) if writes else None,
        trained=(counters["trajectories.recorded"], counters["trajectories.accepted"]),
    )


def _outside(shares: TimeShares) -> dict[str, float]:
    return {
        state: seconds for state, seconds in shares.seconds.items() if state != "computing" and seconds > 0
    }


def _threads() -> Iterator[tuple[float, set[int]]]:
    """Yield for each thread of this process its CPU seconds and the cores that it may use."""
    for task in Path("/proc/self/task").iterdir():
        try:
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            yield cpu_ns / 1e9, os.sched_getaffinity(int(task.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
