"""What runs of the product tell about learner, store and weights, as parts of a profile."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from forebay.errors import ConfigError
from forebay.learner.run_directory import RunLayout
from forebay.planner.distribution import Distribution, sampled
from forebay.planner.profile import (
    GeneratorProfile,
    LearnerLevel,
    LearnerProfile,
    Origin,
    PackedLevel,
    StoreProfile,
    WeightsProfile,
)
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.trace import SliceRecord, read_trace

# What a learner does besides computing and waiting for a batch: between the end of a step and the next one.
_BETWEEN: Final = ("packing", "publishing", "checkpointing", "other")
_STEP: Final = "train version "


class Slice(NamedTuple):
    """A stretch of a trace, seconds on the machine's monotonic clock."""

    began_s: float
    ended_s: float
    arguments: dict[str, Any]

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.ended_s - self.began_s


def learner_part(
    audited: LearnerProfile, paths: Sequence[Path], warmup_batches: int, origin: Origin
) -> LearnerProfile:
    """Return the learner's part of a profile: alone from its audit, beside the others from runs.

    Args:
        audited: What its shapes, and the bare step, take alone.
        paths: Runs, by ascending size of their batches; the overhead between steps is that of the last one.
        warmup_batches: First batches that are left out.
        origin: Where and when the runs were.
    """
    runs = [steady_lines(path, warmup_batches) for path in paths]
    by_slots: defaultdict[int, list[float]] = defaultdict(list)
    for line in itertools.chain.from_iterable(runs):
        by_slots[line["real_tokens"] + line["padded_tokens"]].append(line["time.computing_s"])
    return msgspec.structs.replace(
        audited,
        origin=origin,
        levels=tuple(map(_level, runs)),
        overhead_s=sampled(sum(line[f"time.{state}_s"] for state in _BETWEEN) for line in runs[-1]),
        packed=tuple(
            PackedLevel(slots=slots, step_s=sampled(taken_s)) for slots, taken_s in sorted(by_slots.items())
        ),
        alone=False,
    )


def _level(lines: Sequence[dict[str, Any]]) -> LearnerLevel:
    return LearnerLevel(
        trajectories=round(_mean(line["trajectories"] for line in lines)),
        tokens=round(_mean(line["fresh_tokens"] for line in lines)),
        step_s=sampled(line["time.computing_s"] for line in lines),
    )


def tokens_of_calls(paths: Sequence[Path]) -> Distribution:
    """Return the tokens that all model calls of some runs sampled."""
    calls = (one for path in paths for one in slices_of(path, "generator")["generate"])
    return sampled(float(one.arguments["tokens"]) for one in calls)


def with_tokens(generator: GeneratorProfile, tokens: Distribution) -> GeneratorProfile:
    """Return a generator's part whose calls sample so many tokens.

    The few episodes of an audit say how long prompts are, but too little of what is sampled at random.

    Args:
        generator: As audited.
        tokens: Of a call.
    """
    traffic = {
        name: msgspec.structs.replace(found, sampled_tokens=tokens)
        for name, found in generator.traffic.items()
    }
    return msgspec.structs.replace(generator, traffic=traffic)


def store_part(path: Path, origin: Origin) -> StoreProfile:
    """Return the store's part of a profile: what puts, and the way of a batch to the learner, took."""
    learner, actors = slices_of(path, "learner"), slices_of(path, "actor")
    put_s = sampled(one.duration_s for one in actors["put"])
    ways = zip(learner["store.take"], learner["pack"], learner["store.record"], strict=False)
    return StoreProfile(
        origin=origin,
        engine="lmdb",
        puts_per_s=1.0 / put_s.mean,
        put_s=put_s,
        take_s=sampled(sum(part.duration_s for part in way) for way in ways),
        trajectory_bytes=sampled([_trajectory_bytes(path)]),
    )


def weights_part(path: Path, origin: Origin) -> WeightsProfile:
    """Return the weights' part of a profile: from the hand-over to the publisher until visible, and used."""
    learner, generator = slices_of(path, "learner"), slices_of(path, "generator")
    copied_s = sorted(one.ended_s for one in learner["publishing"])
    given_s = {
        int(name.removeprefix(_STEP)): copied_s[bisect_left(copied_s, found[-1].ended_s)]
        for name, found in learner.items()
        if name.startswith(_STEP) and found[-1].ended_s <= copied_s[-1]
    }
    published = _by_version(learner["store.publish"], given_s)
    sampling = _by_version(generator["load weights"], given_s)
    files = sorted((path / "weights").rglob("*.safetensors"))
    return WeightsProfile(
        origin=origin,
        first_token_s=sampled(sampling),
        publish_s=sampled(published),
        num_bytes=files[-1].stat().st_size if files else 0,
    )


def steady_lines(path: Path, warmup_batches: int) -> list[dict[str, Any]]:
    """Return the metrics of a run's batches after the first ones."""
    lines = list(read_metrics(RunLayout(path).metrics))[warmup_batches:]
    if not lines:
        raise ConfigError(f"{path} has no batch after its first {warmup_batches}")
    return lines


def slices_of(path: Path, role: str) -> defaultdict[str, list[Slice]]:
    """Return what the processes of a role recorded, by name, in order."""
    found: defaultdict[str, list[Slice]] = defaultdict(list)
    for file in sorted((path / "trace").glob(f"{role}*.jsonl*")):
        for record in read_trace(file):
            if isinstance(record, SliceRecord):
                began_s, ended_s = record.began_ns / 1e9, (record.began_ns + record.duration_ns) / 1e9
                found[record.name].append(Slice(began_s, ended_s, record.arguments))
    return found


def _by_version(found: Iterable[Slice], given_s: dict[int, float]) -> Iterator[float]:
    for one in found:
        version = one.arguments["version"]
        if version in given_s:
            yield max(0.0, one.ended_s - given_s[version])


def _trajectory_bytes(path: Path) -> float:
    last = list(read_metrics(RunLayout(path).metrics))[-1]
    stored = last["store.live_bytes"] + last["store.retained_bytes"]
    return float(stored / max(1, last["store.trajectories.accepted"]))


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
