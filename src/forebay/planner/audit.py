"""From measured levels to what they mean: times, failures, the knee, and a profile for the planner."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.planner.audit_calls import interval, times
from forebay.planner.audit_records import Episode, Level
from forebay.planner.audit_statistics import (
    Estimate,
    Knee,
    Tail,
    find_knee,
    mean_estimate,
    slice_rates,
    tail_index,
)
from forebay.planner.distribution import sampled
from forebay.planner.profile import EnvironmentLevel, EnvironmentProfile, Origin
from forebay.telemetry.percentiles import percentile

_INSTANT: Final = 0.2


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of measured numbers.

    Args:
        num_samples: How many there were.
        mean: Their mean.
        p50: The median.
        p95: Exceeded by one in twenty.
        p99: Exceeded by one in a hundred.
        max: The largest.
    """

    num_samples: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of episodes at a time gave, in numbers.

    Args:
        concurrency: Episodes at a time.
        window_s: Time in which they were begun.
        num_episodes: Episodes that came to an end, failures included.
        num_errors: Of these, failed by an exception.
        num_timeouts: Of these, failed by a deadline.
        num_cut: Episodes that were given up at the end of the level.
        answers_per_s: Answered calls per second, of episodes that did not fail.
        episodes_per_s: The same in episodes of mean length.
        reset_s: Time of a reset.
        step_s: Time of a step.
        episode_s: Time of a whole episode.
        errors: Failures by kind.
        cpu_busy: Share of the machine's processors that were busy.
        own_cpu: Processor seconds of this process per second.
        blocked_share: Share of the time in which the environment blocked the event loop.
        blocked_at: The line that did it longest.
        own_share: Share of the episodes' time that the measurement costs: its cost of a call on an
            environment that does nothing, times the calls.
        between_share: Share of the episodes' time between an answer and the next call; what exceeds
            `own_share` is waiting for the event loop.
    """

    concurrency: int
    window_s: float
    num_episodes: int
    num_errors: int
    num_timeouts: int
    num_cut: int
    answers_per_s: Estimate
    episodes_per_s: float | None
    reset_s: Spread | None
    step_s: Spread | None
    episode_s: Spread | None
    errors: dict[str, int]
    cpu_busy: float | None
    own_cpu: float
    blocked_share: float
    blocked_at: str
    own_share: float
    between_share: float


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found out about an environment.

    Args:
        name: The environment.
        actions: What was said to it.
        levels: By rising concurrency.
        knee: Where more concurrency only adds latency.
        turns: Steps of a complete episode.
        observed_characters: Characters that it says in a complete episode.
        step_tail: How heavy the tail of its step times is, at levels below the knee.
        details: An example of every kind of failure.
        own_call_s: Time between an answer and the next call, on an environment that does nothing.
        interrupted: Whether it was stopped before its end.
    """

    name: str
    actions: str
    levels: tuple[LevelSummary, ...]
    knee: Knee
    turns: Spread | None
    observed_characters: Spread | None
    step_tail: Tail | None
    details: dict[str, str]
    own_call_s: float
    interrupted: bool

    @property
    def own_share(self) -> float:
        """Largest share of the episodes' time, of all levels, that the measurement costs."""
        return max((level.own_share for level in self.levels), default=0.0)


def conclude(
    name: str, actions: str, levels: Sequence[Level], *, own_call_s: float, interrupted: bool = False
) -> Audit:
    """Work out what measured levels mean.

    Args:
        name: The environment.
        actions: What was said to it.
        levels: What was measured, in any order.
        own_call_s: Time between an answer and the next call, on an environment that does nothing.
        interrupted: Whether it was stopped before its end.
    """
    ordered = sorted(levels, key=lambda level: level.concurrency)
    summaries = tuple(summarize(level, own_call_s) for level in ordered)
    knee = find_knee({level.concurrency: _rates(level) for level in ordered})
    if summaries and summaries[0].own_share > _INSTANT and knee.kind != "unknown":
        knee = msgspec.structs.replace(knee, kind="instant")
    complete = [episode for level in ordered for episode in level.complete]
    steps_s = [s for level in _undisturbed(ordered, knee) for s in level.durations_s("step")]
    details = {e.error: e.detail for level in ordered for e in level.episodes if e.error}
    return Audit(
        name=name,
        actions=actions,
        levels=summaries,
        knee=knee,
        turns=spread([float(episode.num_turns) for episode in complete]),
        observed_characters=spread([float(episode.observed_characters) for episode in complete]),
        step_tail=tail_index(steps_s),
        details=details,
        own_call_s=own_call_s,
        interrupted=interrupted,
    )


def summarize(level: Level, own_call_s: float) -> LevelSummary:
    """Return a level in numbers.

    Args:
        level: What was measured.
        own_call_s: Time between an answer and the next call, on an environment that does nothing.
    """
    endings = Counter(episode.ending for episode in level.episodes)
    rate = mean_estimate(_rates(level))
    complete = level.complete
    calls = statistics.fmean(len(episode.calls) for episode in complete) if complete else None
    total_s = sum(episode.duration_s for episode in level.episodes)
    return LevelSummary(
        concurrency=level.concurrency,
        window_s=level.window_s,
        num_episodes=len(level.episodes) - endings["cut"],
        num_errors=endings["error"],
        num_timeouts=endings["timeout"],
        num_cut=endings["cut"],
        answers_per_s=rate,
        episodes_per_s=rate.value / calls if calls else None,
        reset_s=spread(level.durations_s("reset")),
        step_s=spread(level.durations_s("step")),
        episode_s=spread([episode.duration_s for episode in complete]),
        errors=dict(Counter(episode.error for episode in level.episodes if episode.error)),
        cpu_busy=level.cpu_busy,
        own_cpu=level.own_cpu,
        blocked_share=_share(level.blocked_s, level.window_s),
        blocked_at=level.blocked_at,
        own_share=_share(own_call_s * sum(len(episode.calls) for episode in level.episodes), total_s),
        between_share=_share(sum(episode.own_s for episode in level.episodes), total_s),
    )


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, part_s / whole_s) if whole_s > 0.0 else 0.0


def spread(values: Sequence[float]) -> Spread | None:
    """Return percentiles of numbers; None if there are none.

    Example:
        >>> found = spread([3.0, 1.0, 2.0, 6.0])
        >>> found.mean, found.p50, found.p95
        (3.0, 2.0, 6.0)
    """
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        num_samples=len(values),
        mean=statistics.fmean(values),
        p50=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def profile_of(
    levels: Sequence[Level], knee: Knee, origin: Origin, weight: float = 1.0
) -> EnvironmentProfile | None:
    """Return what a planner needs; None if no episode came to an end without a failure.

    Times are those of levels below the knee, where episodes do not disturb one another.

    Args:
        levels: What was measured.
        knee: Where disturbance begins.
        origin: Where and when it was measured.
        weight: Share of the tasks, relative to other environments.
    """
    ordered = sorted(levels, key=lambda level: level.concurrency)
    # A short measurement may have ended no episode below the knee; then those at it have to do.
    for chosen in (_undisturbed(ordered, knee), ordered):
        episodes = [episode for level in chosen for episode in level.episodes if episode.ending != "cut"]
        complete = [episode for level in chosen for episode in level.complete]
        if complete:
            break
    else:
        return None
    between_s, final_s = _steps_s(chosen, final=False), _steps_s(chosen, final=True)
    return EnvironmentProfile(
        origin=origin,
        reset_s=times([s for level in chosen for s in level.durations_s("reset")]),
        step_s=times(between_s or final_s),
        final_step_s=times(final_s) if between_s and final_s else None,
        turns=sampled(float(episode.num_turns) for episode in complete),
        num_episodes=len(episodes),
        concurrency=max(level.concurrency for level in chosen),
        num_errors=sum(episode.ending == "error" for episode in episodes),
        num_timeouts=sum(episode.ending == "timeout" for episode in episodes),
        levels=tuple(found for level in ordered if (found := _profile_level(level)) is not None),
        knee=knee.concurrency if knee.kind == "saturates" else None,
        weight=weight,
    )


def _profile_level(level: Level) -> EnvironmentLevel | None:
    durations_s = level.durations_s("step")
    if not durations_s:
        return None
    steps = [call for call in level.useful_calls if call.verb == "step"]
    rate = mean_estimate(slice_rates(steps, level.window_s))
    return EnvironmentLevel(
        concurrency=level.concurrency,
        steps_per_s=rate.value,
        steps_per_s_interval=interval(rate),
        step_s=times(durations_s),
        num_errors=sum(episode.ending == "error" for episode in level.episodes),
        num_timeouts=sum(episode.ending == "timeout" for episode in level.episodes),
    )


def _rates(level: Level) -> list[float]:
    return slice_rates(level.useful_calls, level.window_s)


def _undisturbed(ordered: Sequence[Level], knee: Knee) -> list[Level]:
    """Return the levels below the knee, the lowest in any case; all of them if there is none."""
    if knee.kind not in ("saturates", "bends"):
        return list(ordered)
    return [level for level in ordered if level.concurrency < knee.concurrency] or list(ordered[:1])


def _steps_s(levels: Sequence[Level], *, final: bool) -> list[float]:
    episodes: list[Episode] = [episode for level in levels for episode in level.episodes]
    calls = (call for episode in episodes for call in episode.calls)
    return [c.duration_s for c in calls if c.verb == "step" and c.answered and c.final == final]
