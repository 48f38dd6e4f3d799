"""What a run measures: one line per batch, and the figures of the whole run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forebay.batching.batch import Batch
from forebay.learner.bare import BareSpeed, BareWork, work_of
from forebay.learner.batch_values import batch_values, trained_trajectories
from forebay.learner.feed import JournaledBatch
from forebay.learner.lives import Lives
from forebay.learner.train_step import StepStats
from forebay.models.moe import RouterSums
from forebay.models.router_loss import router_measures
from forebay.objectives.inputs import LossSums, summarize
from forebay.store.accounting import count_lost
from forebay.store.protocol import StoreStats
from forebay.telemetry.life_summary import summarize_lives
from forebay.telemetry.metrics import Value, read_metrics
from forebay.telemetry.sinks.protocol import MetricLog
from forebay.telemetry.spans import TimeShares, TimeStrip
from forebay.telemetry.summary import RunSummary
from forebay.trajectory import PolicyVersion

_MIN_REWARD_BATCHES = 3


class Window(msgspec.Struct):
    """Totals over the part of a run that is measured.

    Args:
        batches: Batches trained.
        updates: Optimizer updates.
        fresh_tokens: Action tokens trained.
        work: What the bare step would have had to do for them, on full rows.
        last: What was trained last.
        step_s: Time of the steps.
        environment_s: Time of environment steps.
        environment_steps: Environment steps.
    """

    batches: int = 0
    updates: int = 0
    fresh_tokens: int = 0
    work: BareWork = msgspec.field(default_factory=BareWork)
    last: Batch | None = None
    step_s: float = 0.0
    environment_s: float = 0.0
    environment_steps: int = 0


class Meter:
    """Measures a learner and writes what it finds.

    Args:
        writer: Where the line of each batch goes.
        strip: The learner's time.
        bare: How fast the step is alone.
        compiles: Returns the programs built since warm-up.
        store_stats: Reads the store.
        warmup_batches: First batches left out of the utilization figures.
        lives: Records where the tokens spent their lives.
        waits: Returns, and forgets, the seconds that the learner starved, by cause.
        saves: Returns, and forgets, what the checkpoints took that were saved meanwhile.
    """

    def __init__(
        self,
        writer: MetricLog,
        strip: TimeStrip,
        bare: BareSpeed,
        compiles: Callable[[], int],
        store_stats: Callable[[], StoreStats],
        warmup_batches: int,
        lives: Lives,
        waits: Callable[[], Mapping[str, float]] = dict,
        saves: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._writer = writer
        self._strip = strip
        self.bare = bare
        self._compiles = compiles
        self._store_stats = store_stats
        self._warmup_batches = warmup_batches
        self.lives = lives
        self._waits = waits
        self._saves = saves
        self._before = strip.read()
        self.batches = 0
        self.window = Window()

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Account for a trained batch and write its line.

        Args:
            batch: What was trained.
            version: The version that it made.
            stats: One per optimizer update that was not empty.
            step_s: Time of its updates.
        """
        self.batches += 1
        trained = trained_trajectories(batch)
        lived = self.lives.add(batch, version.version, trained, step_s)
        values = self._values(batch, stats, step_s) | batch_values(batch, trained) | lived
        self._writer.write(version.version, {"incarnation": version.incarnation, **values})
        if self.batches == self._warmup_batches:
            self._begin_window()
        elif self.batches > self._warmup_batches:
            self._grow_window(batch, step_s)

    def restart(self) -> None:
        """Forget what was measured, a replay for instance: warm-up begins anew."""
        self.batches = 0
        self.lives.restart()
        self._begin_window()

    def _begin_window(self) -> None:
        self._strip.restart()
        self._before = self._strip.read()
        self.window = Window()

    def _grow_window(self, batch: JournaledBatch, step_s: float) -> None:
        steps = [step for group in batch.groups for t in group.trajectories for step in t.steps]
        window = self.window
        window.batches += 1
        window.updates += len(batch.updates)
        window.fresh_tokens += sum(update.counts.tokens for update in batch.updates)
        window.work.add(_work(batch))
        window.last = batch.updates[-1]
        window.step_s += step_s
        window.environment_s += sum(step.environment_s for step in steps)
        window.environment_steps += len(steps)

    def _values(self, batch: JournaledBatch, stats: Sequence[StepStats], step_s: float) -> dict[str, Value]:
        now = self._strip.read()
        interval, self._before = now.minus(self._before), now
        store = self._store_stats()
        fresh_tokens = sum(update.counts.tokens for update in batch.updates)
        useful_s = self.bare.seconds(_work(batch))
        wall_s = max(interval.wall_s, 1e-9)
        return {
            "busy": interval.busy,
            "goodput": useful_s / wall_s,
            "starved": interval.share("starved"),
            "buffer": store.settled_groups,
            "staleness": batch.updates[0].stats.staleness_mean,
            "reward": batch.updates[0].stats.reward_mean,
            "tokens_per_s": fresh_tokens / wall_s,
            "compiles": self._compiles(),
            "step_s": step_s,
            **{f"time.{state}_s": seconds for state, seconds in interval.seconds.items()},
            **{f"wait.{cause}_s": seconds for cause, seconds in self._waits().items()},
            **self._saves(),
            **_step_values(stats),
            **_store_values(store),
        }


def summarize_run(
    meter: Meter,
    shares: TimeShares,
    store: StoreStats,
    metrics: Path,
    *,
    max_staleness: int,
    group_size: int,
    compiles: int,
) -> RunSummary:
    """Return the figures of a run: utilization since warm-up of this process, the rest over the whole run.

    Args:
        meter: What this process measured.
        shares: Its time since warm-up.
        store: The store at the end.
        metrics: `metrics.jsonl`, with the lines of every process that led the run.
        max_staleness: The limit, in versions.
        group_size: Trajectories of a group.
        compiles: Programs built after warm-up.
    """
    window = meter.window
    # Quick episodes settle first: the first batches alone would flatter. All that began with the first
    # weights count.
    ends = max(_MIN_REWARD_BATCHES, max_staleness + 1)
    lines = surviving_lines(read_metrics(metrics))
    rewards = [line["reward"] for line in lines if line.get("reward") is not None]
    counters = store.counters
    rejected = sum(n for name, n in counters.items() if name.startswith("trajectories.rejected."))
    fresh = sum(line["fresh_tokens"] for line in lines)
    return RunSummary(
        busy=shares.busy if window.batches else None,
        goodput=_ratio(meter.bare.seconds(window.work), shares.wall_s) if window.batches else None,
        starved=shares.share("starved") if window.batches else None,
        steps=lines[-1]["step"] if lines else 0,
        steps_per_s=_ratio(window.updates, shares.wall_s),
        fresh_tokens_per_s=_ratio(window.fresh_tokens, shares.wall_s),
        max_staleness=max_staleness,
        group_size=group_size,
        step_s=_ratio(window.step_s, window.updates),
        env_s=_ratio(window.environment_s, window.environment_steps),
        reward_first=_mean(rewards[:ends]),
        reward_last=_mean(rewards[-ends:]),
        staleness_max=max((line["staleness_max"] for line in lines), default=0),
        staleness_mean=_ratio(sum(line["staleness"] * line["fresh_tokens"] for line in lines), fresh),
        discarded=rejected + sum(line["discarded"] for line in lines),
        masked_tokens=sum(line["masked_tokens"] for line in lines),
        compiles_after_warmup=compiles,
        accepted=counters.get("trajectories.accepted", 0),
        trained=sum(line["trajectories"] for line in lines),
        lost=count_lost(store),
        repeated=count_repeated(lines),
        life=summarize_lives(meter.lives.read()),
    )


def surviving_lines(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the surviving history: a step trained again replaces itself and all later ones."""
    kept: list[dict[str, Any]] = []
    for line in lines:
        while kept and kept[-1]["step"] >= line["step"]:
            kept.pop()
        kept.append(line)
    return kept


def count_repeated(lines: Iterable[dict[str, Any]]) -> int:
    """Return how many groups occur in more than one batch, each surplus counting once."""
    seen = Counter(group_id for line in lines for group_id in line["groups"].split())
    return sum(count - 1 for count in seen.values())


def _work(batch: JournaledBatch) -> BareWork:
    work = BareWork()
    for update in batch.updates:
        work.add(work_of(update))
    return work


def _step_values(stats: Sequence[StepStats]) -> dict[str, Value]:
    if not stats:
        return {}
    sums = LossSums(
        *(sum(float(value) for value in values) for values in zip(*(s.sums for s in stats), strict=True))
    )
    diagnostics = dataclasses.asdict(summarize(sums))
    for name in ("loss", "value_loss"):
        diagnostics[name] /= len(stats)
    del diagnostics["fresh_tokens"]
    # Without a reference or a critic, or with no distance from what they say.
    for name in ("reference_kl", "value_loss"):
        if diagnostics[name] == 0:
            del diagnostics[name]
    return {
        **diagnostics,
        "grad_norm": float(stats[-1].grad_norm),
        "update_norm": float(stats[-1].update_norm),
        "learning_rate": float(stats[-1].learning_rate),
        "nonfinite_updates": sum(not bool(s.finite) for s in stats),
        **_router_values(stats),
    }


def _router_values(stats: Sequence[StepStats]) -> dict[str, Value]:
    """Return what is reported of routers of experts; nothing in a model without them."""
    routed = [step.routed for step in stats if step.routed is not None]
    if not routed:
        return {}
    sums = RouterSums(*(sum(parts) for parts in zip(*routed, strict=True)))
    return {f"router.{name}": value for name, value in router_measures(sums).items()}


def _store_values(store: StoreStats) -> dict[str, Value]:
    return {
        "store.open_groups": store.open_groups,
        "store.outstanding": store.outstanding,
        "store.live_bytes": store.live_bytes,
        "store.retained_bytes": store.retained_bytes,
        **{f"store.{name}": count for name, count in store.counters.items()},
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
