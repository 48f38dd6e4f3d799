"""The process of an audit that needs JAX: publishes a run's first weights, or times its learner.

It is a process of its own so that an audit of environments imports no JAX, and so that threads and memory of
one part do not disturb another.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from forebay.cli.audit_jobs import Failed, Job, LearnerFound, Message, Said
from forebay.cli.roles import configure_jax, keep_memory_on_cpus
from forebay.cli.runs import Run, join_run
from forebay.errors import ForebayError
from forebay.launch.placement import settle_in
from forebay.planner.audit_calls import times
from forebay.planner.distribution import sampled
from forebay.planner.profile_records import LearnerBucket, LearnerLevel
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher

if TYPE_CHECKING:
    from forebay.learner.feed import JournaledBatch
    from forebay.learner.timing import Length, StepTimer, Timed

# Parts of a batch that are timed, the whole first; and how the time is divided between them and the rest.
_PARTS: Final = ((1, 0.4), (2, 0.15), (4, 0.15))
_BUCKETS_SHARE: Final = 0.2
_APPLY_SHARE: Final = 0.1
_LEAST: Final = 3


def main() -> None:
    """Do what standard input asks for, and say on standard output what comes of it."""
    with _taken_output() as out:
        settle_in()
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
        try:
            for message in work(job):
                _send(message, out)
        except ForebayError as error:
            _send(Failed(str(error), error.exit_code), out)


def work(job: Job) -> Iterator[Message]:
    """Do a job; yield what is being done, and what has been found after each step of it.

    Raises:
        ConfigError: There is no device, or the settings do not fit those there are.
    """
    run = join_run(Path(job.run))
    configure_jax()
    device = _device()
    keep_memory_on_cpus()
    if job.kind == "weights":
        _publish(run)
        return
    yield from _time_learner(run, job, device)


def _taken_output() -> BinaryIO:
    """Return standard output for messages alone: what anything else prints goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _send(message: Message, out: BinaryIO) -> None:
    out.write(msgspec.json.encode(message) + b"\n")
    out.flush()


def _device() -> str:
    from forebay.models.sharding import find_devices

    devices = find_devices()
    return f"{len(devices)} x {devices[0].device_kind}"


def _publish(run: Run) -> None:
    from forebay.cli.learner_weights import LearnerWeights

    weights = LearnerWeights(run)
    publisher = WeightPublisher(run.layout.weights, run_id=run.run_id, settings=run.config.weights)
    weights.publish(publisher, PolicyVersion(0, 0), weights.trained)


def _time_learner(run: Run, job: Job, device: str) -> Iterator[Message]:
    from forebay.cli.learner_parts import make_parts
    from forebay.cli.learner_weights import LearnerWeights
    from forebay.cli.reference_model import make_reference
    from forebay.learner.timing import Length, StepTimer, made_up_batch

    yield Said("learner: compiling")
    began_s = time.monotonic()
    parts = make_parts(run)
    names = parts.warm_up()
    found = LearnerFound(device=device, compile_s=time.monotonic() - began_s, num_programs=len(names))
    weights = LearnerWeights(run)
    parts.programs.frozen.hold(weights.frozen)
    reference = make_reference(run, parts, weights.trained, PolicyVersion(0, 0))
    timer = StepTimer(parts.programs, weights.trained, parts.annotators(reference), run.config.learner)
    lengths = [Length(*length) for length in job.lengths]
    vocabulary = run.model.num_real_tokens
    whole = made_up_batch(parts.pack, lengths, run.config.division.size, vocabulary)
    yield Said(f"learner: {len(names)} programs compiled in {found.compile_s:.0f} s; timing steps")
    for part in part_batches(lengths, run.config.division.size, run.config.batching.minibatches):
        batch = made_up_batch(parts.pack, part, run.config.division.size, vocabulary)
        share = _PARTS[len(found.levels)][1]
        if not found.levels:
            timer.train(batch)  # the first one allocates
        timed = _timed(timer, batch, share * job.limit_s)
        tokens = sum(update.counts.tokens for update in batch.updates)
        found = _with_level(found, len(part), tokens, timed)
        yield found
    segment = max(2, run.config.generator.context // 2)
    buckets = []
    for bucket in parts.ladder:
        limit_s = _BUCKETS_SHARE * job.limit_s / len(parts.ladder)
        call_s = times(timer.bucket_s(bucket, segment, limit_s))
        buckets.append(LearnerBucket(rows=bucket.rows, length=bucket.length, call_s=call_s))
    apply_s = times(timer.apply_s(_APPLY_SHARE * job.limit_s))
    full = timer.full_tokens_per_s(whole, parts.ladder, segment)
    yield msgspec.structs.replace(found, buckets=tuple(buckets), apply_s=apply_s, full_tokens_per_s=full)


def part_batches(lengths: Sequence[Length], group_size: int, minibatches: int) -> Iterator[list[Length]]:
    """Yield the whole batch, about half of it, and about a quarter, in whole groups and minibatches.

    Args:
        lengths: Of the whole batch.
        group_size: Trajectories of a group.
        minibatches: Updates that the groups are divided into evenly.
    """
    unit, seen = group_size * minibatches, set()
    for divisor, _ in _PARTS:
        number = max(1, len(lengths) // unit // divisor) * unit
        if number not in seen:
            seen.add(number)
            yield list(lengths[:number])


def _timed(timer: StepTimer, batch: JournaledBatch, limit_s: float) -> list[Timed]:
    found: list[Timed] = []
    give_up_s = time.monotonic() + limit_s
    while len(found) < _LEAST or time.monotonic() < give_up_s:
        found.append(timer.train(batch))
    return found


def _with_level(found: LearnerFound, trajectories: int, tokens: int, timed: Sequence[Timed]) -> LearnerFound:
    level = LearnerLevel(
        trajectories=trajectories, tokens=tokens, step_s=times([one.step_s for one in timed])
    )
    levels = tuple(sorted((*found.levels, level), key=lambda one: one.trajectories))
    overhead_s = found.overhead_s or sampled(round(one.overhead_s, 6) for one in timed)
    return msgspec.structs.replace(found, levels=levels, overhead_s=overhead_s)


if __name__ == "__main__":
    main()
