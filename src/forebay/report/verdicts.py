"""From a run's records to the figures that the verdict is a function of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.report.history import (
    RECENT_S,
    Bucket,
    mean_of,
    state_seconds,
    totals_under,
    weighted_mean,
)
from forebay.report.load import RunRecord
from forebay.report.text import seconds
from forebay.telemetry.residence import STAGES
from forebay.telemetry.spans import TimeShares
from forebay.telemetry.verdict import Verdict, judge
from forebay.telemetry.window import EnvironmentFigures, Limits, WindowFigures

_FAILED_FINISHES = ("timeout", "aborted")


def verdict_of(run: RunRecord) -> Verdict:
    """Return the verdict on the last five minutes of a run, or on all of a shorter one."""
    return judge(window_of(run))


def window_of(run: RunRecord) -> WindowFigures:
    """Return the figures of the last five minutes of a run, or of all of a shorter one."""
    history = run.history
    length_s = (history.end_s or 0.0) - (history.begin_s or 0.0)
    is_long = length_s > 1.2 * RECENT_S
    buckets = history.recent if is_long else after_warmup(run)
    states = state_seconds(buckets)
    wall_s = sum(states.values())
    counters = run.actors.recent if is_long else run.actors.counters
    num_batches = sum(bucket.num_lines for bucket in buckets)
    finishes = _finishes(buckets, counters)
    return WindowFigures(
        label="the last 5 min" if is_long else f"the whole run ({seconds(length_s)})",
        num_batches=num_batches,
        shares=TimeShares(wall_s=wall_s, seconds=states),
        limits=limits_of(run),
        goodput=_over_time(buckets, "goodput"),
        fill=mean_of(buckets, "fill"),
        waits=_waits(buckets),
        life_s=life_of(buckets),
        lives=run.recent_lives if is_long else run.lives,
        environments=environments_of(run, buckets),
        live_episodes=run.actors.live,
        accepted_per_s=_accepted_per_s(counters, RECENT_S if is_long else length_s),
        buffer_groups=mean_of(buckets, "buffer"),
        outstanding_groups=mean_of(buckets, "store.outstanding"),
        trajectories=sum(finishes.values()),
        failures=_failures(finishes, counters),
        reward=weighted_mean(buckets, "reward", "trajectories"),
        groups=num_batches * run.stored_groups,
        zero_spread_groups=int(sum(bucket.total("zero_spread_groups") for bucket in buckets)),
        fresh_tokens=int(sum(bucket.total("fresh_tokens") for bucket in buckets)),
        masked={k: int(v) for k, v in totals_under(buckets, "masked.").items()},
        compiles=_gained(buckets, "compiles"),
        updates=num_batches * limits_of(run).updates_per_batch,
        nonfinite_updates=int(sum(bucket.total("nonfinite_updates") for bucket in buckets)),
    )


def after_warmup(run: RunRecord) -> tuple[Bucket, ...]:
    """Return a run's buckets without its first batches, which wait for the first episodes."""
    buckets, warmup = run.history.buckets, _whole(run, "learner.warmup_steps", 0)
    return buckets[warmup:] if warmup < len(buckets) == run.history.num_steps else buckets


def limits_of(run: RunRecord) -> Limits:
    """Return what a run's configuration allows."""
    updates = _whole(run, "batching.minibatches", 1) * _whole(run, "batching.epochs", 1)
    staleness = _whole(run, "staleness.max_staleness", 0)
    credit = run.setting("staleness.credit")
    is_controlled = run.setting("actors.episodes_per_process") == "auto"
    episodes_setting = f"actors.{'max_' if is_controlled else ''}episodes_per_process"
    return Limits(
        groups=run.stored_groups,
        group_size=run.stored_group_size,
        siblings=str(run.setting("objective.siblings", "all")),
        updates_per_batch=updates,
        max_staleness=staleness,
        credit=credit if isinstance(credit, int) else max(1, (staleness + 1) // updates),
        credit_is_set=isinstance(credit, int),
        on_stale=str(run.setting("staleness.on_stale", "wait")),
        actor_processes=_whole(run, "actors.processes", 1),
        episodes_per_process=_whole(run, episodes_setting, 1),
        episodes_setting=episodes_setting,
        slots=_whole(run, "generator.slots", 1),
        checkpoint_every=_whole(run, "learner.checkpoint_every", 1),
    )


def life_of(buckets: Sequence[Bucket]) -> dict[str, float]:
    """Return the mean seconds that a trained token spent in each place; empty if that was not recorded."""
    means = {
        place: weighted_mean(buckets, f"life.{place}_s", "fresh_tokens")
        for place in STAGES
        if any(f"life.{place}_s" in bucket.stats for bucket in buckets)
    }
    return {place: mean for place, mean in means.items() if mean is not None}


def environment_names(run: RunRecord) -> list[str]:
    """Return the environments that a run's configuration or its metrics name."""
    configured = run.config.get("environment")
    names = set(configured) if isinstance(configured, dict) else set()
    names.update(
        name.removeprefix("trajectories.") for name in run.history.names if name.startswith("trajectories.")
    )
    return sorted(names)


def environments_of(run: RunRecord, buckets: Sequence[Bucket]) -> tuple[EnvironmentFigures, ...]:
    """Return how each environment answered: from the batches, or from the actors' logs of older runs."""
    return tuple(
        EnvironmentFigures(
            name=name,
            step_p95_s=_latency(run, buckets, name, "step_s", "p95"),
            episode_p50_s=_latency(run, buckets, name, "episode_s", "p50"),
            episode_p95_s=_latency(run, buckets, name, "episode_s", "p95"),
            max_turns=run.setting(f"environment.{name}.max_turns"),
            episode_timeout_s=run.setting(f"environment.{name}.episode_timeout_s"),
        )
        for name in environment_names(run)
    )


def _latency(run: RunRecord, buckets: Sequence[Bucket], name: str, what: str, which: str) -> float | None:
    value = weighted_mean(buckets, f"latency.{name}.{what}.{which}", f"trajectories.{name}")
    if value is not None:
        return value
    logged = f"environment_s.{name}" if what == "step_s" else "episode_s"
    return run.actors.figures.get(f"{logged}.{which}")


def _waits(buckets: Sequence[Bucket]) -> dict[str, float]:
    """Return what a starving learner waited for, in seconds."""
    return {
        name.removesuffix("_s"): waited for name, waited in totals_under(buckets, "wait.").items() if waited
    }


def _over_time(buckets: Sequence[Bucket], name: str) -> float | None:
    """Return the mean of a metric, each bucket weighing as long as it took."""
    total = walls_s = 0.0
    for bucket in buckets:
        value = bucket.mean(name)
        if value is not None:
            wall_s = sum(state_seconds((bucket,)).values())
            total, walls_s = total + value * wall_s, walls_s + wall_s
    return total / walls_s if walls_s else None


def _finishes(buckets: Sequence[Bucket], counters: Mapping[str, int]) -> dict[str, int]:
    """Return how the trained episodes ended; without batches, how all episodes did."""
    trained = {name: int(count) for name, count in totals_under(buckets, "finish.").items()}
    logged = {
        name.removeprefix("finished."): count
        for name, count in counters.items()
        if name.startswith("finished.")
    }
    return trained or logged


def _failures(finishes: Mapping[str, int], counters: Mapping[str, int]) -> dict[str, int]:
    ended_badly = {name: finishes[name] for name in _FAILED_FINISHES if finishes.get(name)}
    errors = {
        name.removeprefix("failed."): count
        for name, count in counters.items()
        if name.startswith("failed.") and count
    }
    return ended_badly | errors


def _accepted_per_s(counters: Mapping[str, int], length_s: float) -> float | None:
    accepted = counters.get("receipts.accepted", 0)
    return accepted / length_s if accepted and length_s > 0 else None


def _gained(buckets: Sequence[Bucket], name: str) -> int:
    values = [value for bucket in buckets if (value := bucket.largest(name)) is not None]
    return int(max(values)) if values else 0


def _whole(run: RunRecord, key: str, default: int) -> int:
    value: Any = run.setting(key, default)
    return value if isinstance(value, int) and value > 0 else default
