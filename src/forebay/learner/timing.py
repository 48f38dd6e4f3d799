"""How long the learner's steps take: its own loop over batches that were made up, and each program alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import jax
import msgspec
import numpy as np

from forebay.batching.packing import Bucket
from forebay.clock import Clock, SystemClock
from forebay.learner.annotations import Annotator
from forebay.learner.bare import BareSpeed, BareWork, full_rows, work_of
from forebay.learner.feed import JournaledBatch, Packer
from forebay.learner.loop import Learner
from forebay.learner.programs import TrainPrograms
from forebay.learner.settings import LearnerSettings
from forebay.learner.train_step import StepStats
from forebay.models.params import Params
from forebay.store.protocol import GroupSpec, JournalEntry, TakenGroup
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
)
from forebay.trajectory import (
    Sequence as Branch,
)

_CLOCK: Final = SystemClock()
_ORIGIN: Final = PolicyVersion(0, 0)
_LEAST: Final = 3
_MOST: Final = 500
_LOGPROB_NATS: Final = -1.0


class Length(NamedTuple):
    """Tokens of a trajectory, and how many of them were sampled."""

    tokens: int
    action_tokens: int


class Timed(NamedTuple):
    """One batch through the learner's loop.

    Attributes:
        step_s: Time inside the compiled programs.
        overhead_s: Time around them: rows to the devices, parameters to the host.
    """

    step_s: float
    overhead_s: float


class StepTimer:
    """A learner that trains made-up batches.

    Args:
        programs: Compiled programs.
        params: Host parameters of any values.
        annotators: What the objective wants to know of a batch.
        settings: The learner's.
        clock: Source of time.
    """

    def __init__(
        self,
        programs: TrainPrograms,
        params: Params,
        annotators: Sequence[Annotator],
        settings: LearnerSettings,
        clock: Clock = _CLOCK,
    ) -> None:
        self._programs, self._strip = programs, TimeStrip(clock)
        self._num_batches = 0
        self._learner = Learner(
            programs,
            programs.init_state(params),
            _ORIGIN,
            settings,
            self._strip,
            self,
            annotators,
            publish=lambda version, params: None,
            save=lambda state, version: None,
        )

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Account for nothing: what a batch did to the parameters is of no interest here."""

    def train(self, batch: JournaledBatch) -> Timed:
        """Train a batch, and copy the parameters as for a publication."""
        self._num_batches += 1
        entry = msgspec.structs.replace(batch.entry, step=self._num_batches)
        before = self._strip.read()
        self._learner.train(batch._replace(entry=entry))
        self._learner.publish()
        passed = self._strip.read().minus(before)
        computing_s = passed.seconds["computing"]
        return Timed(computing_s, passed.wall_s - computing_s)

    def bucket_s(self, bucket: Bucket, segment_tokens: int, limit_s: float) -> list[float]:
        """Return how long the gradient program of one shape takes on rows without padding, call by call.

        Args:
            bucket: The shape.
            segment_tokens: Tokens of a sequence in its rows.
            limit_s: Time to spend.
        """
        programs, params = self._programs, self._learner.state.params
        rows = programs.place(programs.stand_in(full_rows(bucket, segment_tokens)))
        accumulator = programs.zeros()

        def call() -> None:
            nonlocal accumulator
            accumulator = programs.accumulate(
                params, accumulator, rows, float(np.prod(bucket)), int(np.prod(bucket))
            )
            jax.block_until_ready(accumulator)

        return repeated_s(call, limit_s)

    def apply_s(self, limit_s: float) -> list[float]:
        """Return how long the optimizer's program takes, call by call."""
        learner, accumulator = self._learner, self._programs.zeros()

        def call() -> None:
            nonlocal accumulator
            learner.state, accumulator, stats = self._programs.apply(learner.state, accumulator)
            jax.block_until_ready(stats)

        return repeated_s(call, limit_s)

    def full_tokens_per_s(
        self, batch: JournaledBatch, ladder: Sequence[Bucket], segment_tokens: int
    ) -> float:
        """Return the trained tokens per second of the bare programs on full rows, as goodput counts them."""
        rows = {bucket: full_rows(bucket, segment_tokens) for bucket in ladder}
        speed = BareSpeed()
        self._learner.state = speed.calibrate(self._programs, self._learner.state, rows)
        work = BareWork()
        for update in batch.updates:
            work.add(work_of(update))
        return sum(update.counts.tokens for update in batch.updates) / speed.seconds(work)


def repeated_s(call: Callable[[], None], limit_s: float) -> list[float]:
    """Time a call again and again, after one that does not count.

    Args:
        call: Returns when its work is done.
        limit_s: Time to spend; at least three calls are made whatever they take.
    """
    call()
    taken_s: list[float] = []
    give_up_s = time.perf_counter() + limit_s
    while len(taken_s) < _LEAST or (len(taken_s) < _MOST and time.perf_counter() < give_up_s):
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    return taken_s


def made_up_batch(
    pack: Packer, lengths: Sequence[Length], group_size: int, vocabulary: int
) -> JournaledBatch:
    """Return a batch of groups of random tokens, packed as a run packs it.

    The same lengths give the same tokens. They differ, as those of a run do: routers of experts would send
    equal ones to the same experts.

    Args:
        pack: The run's packer.
        lengths: Of each trajectory; a multiple of `group_size`.
        group_size: Trajectories of a group.
        vocabulary: Ids are below this.
    """
    rng = np.random.default_rng(0)
    groups = tuple(
        _group(serial, lengths[first : first + group_size], rng, vocabulary)
        for serial, first in enumerate(range(0, len(lengths), group_size))
    )
    entry = JournalEntry(
        step=1,
        now=_ORIGIN,
        forks=(),
        group_ids=tuple(group.spec.group_id for group in groups),
        digest="0" * 16,
    )
    return JournaledBatch(entry, pack(groups, _ORIGIN, (), b""), groups)


def _group(serial: int, lengths: Sequence[Length], rng: np.random.Generator, vocabulary: int) -> TakenGroup:
    spec = GroupSpec(
        group_id=f"audit{serial:06d}",
        serial=serial,
        task=Task(task_id="audit", environment="audit", payload={}),
        group_size=len(lengths),
        min_group_size=1,
        min_version=_ORIGIN,
        deadline_s=1.0,
        member_bytes=1,
    )
    members = (_branch(length, rng, vocabulary) for length in lengths)
    trajectories = tuple(_trajectory(spec, number, branch) for number, branch in enumerate(members))
    return TakenGroup(spec=spec, trajectories=trajectories)


def _branch(length: Length, rng: np.random.Generator, vocabulary: int) -> Branch:
    # The first token is never one that was sampled.
    tokens = max(2, length.tokens)
    sampled = min(max(1, length.action_tokens), tokens - 1)
    return Branch(
        tokens=rng.integers(0, vocabulary, tokens, dtype=np.int32),
        action_spans=(ActionSpan(tokens - sampled, tokens, 0),),
        behavior_logprobs=np.full(sampled, _LOGPROB_NATS, np.float32),
        version_spans=(VersionSpan(sampled, _ORIGIN, _ORIGIN),),
        sampling=Sampling(),
    )


def _trajectory(spec: GroupSpec, member: int, branch: Branch) -> Trajectory:
    return Trajectory(
        trajectory_id=f"{spec.group_id}.{member}",
        run_id="audit",
        incarnation=0,
        group_id=spec.group_id,
        group_size=spec.group_size,
        member=member,
        attempt=0,
        task_id=spec.task.task_id,
        environment=spec.task.environment,
        sequences=(branch,),
        steps=(StepRecord(float(member % 2), "stop", 0.0, 0.0, 0.0),),
        reward=float(member % 2),
        terminated=True,
        truncated=False,
        finish="terminated",
        started_s=0.0,
        finished_s=0.0,
    )
