"""The learner's part of an audit: what a step takes, in a process that compiles the run's own programs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console

from forebay.cli.audit_jobs import Job, LearnerFound, Said, started
from forebay.cli.audit_parts import PartName, Say, make_origin, times_table
from forebay.cli.audit_rig import Rig
from forebay.clock import Clock
from forebay.config import RunConfig
from forebay.errors import PeerFailedError
from forebay.planner.distribution import Distribution
from forebay.planner.profile import LearnerProfile, Profile
from forebay.planner.profile_records import Traffic

_GUESSED_PROMPT_SHARE: Final = 0.25


class LearnerPart:
    """A learner under measurement.

    Args:
        rig: The run.
        limit_s: Time to measure, after compiling.
        command: How this was asked for.
        clock: Source of time.
    """

    name: PartName = "learner"

    def __init__(self, rig: Rig, limit_s: float, command: str, clock: Clock) -> None:
        self._rig, self._limit_s, self._command, self._clock = rig, limit_s, command, clock
        self._began_s = clock.wall_s()
        self._found: LearnerFound | None = None

    def measure(self, say: Say) -> None:
        """Measure in a process of its own, on the learner's cores; see `Part.measure`."""
        self._began_s = self._clock.wall_s()
        lengths = batch_lengths(self._rig.config, self._rig.traffic)
        job = Job(kind="learner", run=str(self._rig.run.layout.path), limit_s=self._limit_s, lengths=lengths)
        with started(job, self._rig.cpus[0]) as messages:
            for message in messages:
                if isinstance(message, Said):
                    say(message.text)
                elif isinstance(message, LearnerFound):
                    self._found = message
                    say(f"learner: {len(message.levels)} sizes of a batch timed")
        if self._found is None:
            raise PeerFailedError("the process that measures the learner found nothing")

    def profile(self) -> Profile | None:
        """Return the learner's part; see `Part.profile`."""
        found = self._found
        if found is None or found.overhead_s is None:
            return None
        traffic = "the lengths of the run's episodes" if self._rig.traffic else "guessed lengths"
        on = f"{found.device}, cores {','.join(map(str, self._rig.cpus[0]))}"
        return Profile(
            learner=LearnerProfile(
                origin=make_origin(self._clock, self._began_s, f"{self._command}; {traffic}", on),
                levels=found.levels,
                overhead_s=found.overhead_s,
                full_tokens_per_s=found.full_tokens_per_s,
                buckets=found.buckets,
                apply_s=found.apply_s,
                compile_s=round(found.compile_s, 3),
                alone=True,
            )
        )

    def show(self, console: Console) -> None:
        """Print the page; see `Part.show`."""
        found = self._found
        if found is None:
            return
        title = f"\nlearner, {found.num_programs} programs on {found.device}, alone on this machine"
        console.print(title, style="bold", markup=False)
        rows: list[tuple[str, Distribution | None]] = [
            (f"step of {level.trajectories} trajectories", level.step_s) for level in found.levels
        ]
        rows += [(f"micro-batch {one.rows} x {one.length}", one.call_s) for one in found.buckets]
        rows += [("optimizer", found.apply_s), ("around a step", found.overhead_s)]
        console.print(times_table("time of a", rows))

    def as_json(self) -> dict[str, Any]:
        """Return what was found; see `Part.as_json`."""
        found = self.profile()
        return {"learner": None if found is None else msgspec.to_builtins(found.learner)}


def batch_lengths(config: RunConfig, traffic: Mapping[str, Traffic]) -> tuple[tuple[int, int], ...]:
    """Return tokens and sampled tokens of each trajectory of a batch.

    Long episodes sample much: the same quantile of both distributions goes together. Environments share the
    batch by weight.

    Args:
        config: The run.
        traffic: What its episodes were like; where nothing is known, half of the context is taken.
    """
    wanted = config.batching.groups * config.batching.group_size
    limit = config.batching.max_length
    known = [name for name in config.environment if name in traffic]
    if not known:
        tokens = min(max(2, config.generator.context // 2), limit)
        sampled = max(1, min(config.actors.max_turn_tokens, int(_GUESSED_PROMPT_SHARE * tokens)))
        return ((tokens, sampled),) * wanted
    shares = _shares([config.environment[name].weight for name in known], wanted)
    lengths = [
        _length(traffic[name], (number + 0.5) / share, limit)
        for name, share in zip(known, shares, strict=True)
        for number in range(share)
    ]
    random.Random(0).shuffle(lengths)
    return tuple(lengths)


def _shares(weights: Sequence[float], whole: int) -> list[int]:
    """Divide a whole number by weight; what rounding leaves goes to the last."""
    parts = [int(whole * weight / sum(weights)) for weight in weights]
    parts[-1] += whole - sum(parts)
    return parts


def _length(traffic: Traffic, fraction: float, limit: int) -> tuple[int, int]:
    tokens = min(max(2, round(traffic.episode_tokens.quantile(fraction))), limit)
    return tokens, max(1, min(tokens - 1, round(traffic.action_tokens.quantile(fraction))))
