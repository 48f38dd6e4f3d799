"""What a learner tells about itself: its time, its trace, its metrics and where they go, its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from forebay.batching.prefetch import Prefetcher
from forebay.cli.runs import Run
from forebay.cli.tracing import open_tracer
from forebay.clock import Clock
from forebay.config.dump import json_tree
from forebay.learner.accounts import Accounts
from forebay.learner.bare import BareSpeed
from forebay.learner.checkpoint_stats import SaveTotals
from forebay.learner.feed import JournaledBatch
from forebay.learner.lives import Lives, look_inside
from forebay.learner.meter import Meter
from forebay.learner.samples import SampleKeeper
from forebay.learner.step_trace import StepTrace
from forebay.store.protocol import StoreStats
from forebay.telemetry.causes import CauseTotals
from forebay.telemetry.life_log import LifeLog
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.occupancy import OccupancySampler
from forebay.telemetry.sinks import MetricSinks, SinkContext, make_sinks
from forebay.telemetry.spans import TimeStrip


class LearnerTelemetry:
    """Everything that measures a learner.

    Args:
        run: The run.
        store_stats: Reads the store.
        compiles: Returns the programs built since warm-up.
        settle_thread: Moves a background thread off the learner's cores; called inside each.
        clock: Source of time.
        stack: Closes what was opened.

    Attributes:
        tracer: Records what this process does.
        strip: Where the learner's time goes.
        bare: How fast the step is alone.
        waits: What the learner waited for while it starved.
        saves: What its checkpoints took.
        lives: Where the tokens that it trains spent their lives.
        meter: What the run measures.
        evaluations: Passes evaluations on to wherever metrics go.
        accounts: Everyone who is told about a trained batch.

    Raises:
        ConfigError: A package that a wanted sink needs is missing.
    """

    def __init__(
        self,
        run: Run,
        store_stats: Callable[[], StoreStats],
        compiles: Callable[[], int],
        settle_thread: Callable[[], None],
        clock: Clock,
        stack: ExitStack,
    ) -> None:
        config = run.config
        self.tracer = open_tracer(run, "learner")
        stack.callback(self.tracer.close)
        self.strip = TimeStrip(clock, self.tracer.observe)
        self.bare = BareSpeed()
        self.waits = CauseTotals()
        self.saves = SaveTotals()
        writer = stack.enter_context(MetricsWriter(run.layout.metrics, clock))
        context = SinkContext(run.layout.path, run.run_id, json_tree(config))
        sinks = MetricSinks(writer, make_sinks(config.telemetry, context, settle_thread))
        stack.callback(sinks.close)
        self.lives = Lives(stack.enter_context(LifeLog(run.layout.lives, clock)), clock)
        samples = SampleKeeper(
            run.layout.samples,
            every=config.learner.sample_every,
            count=config.learner.samples,
            on_start=settle_thread,
        )
        stack.callback(samples.close)
        self.meter = Meter(
            sinks,
            self.strip,
            self.bare,
            compiles,
            store_stats,
            config.learner.warmup_steps,
            self.lives,
            self.waits.drain,
            self.saves.drain,
        )
        self.evaluations = EvaluationRelay(run.layout.path / "eval.jsonl", sinks)
        self._settle_thread = settle_thread
        self.accounts = Accounts(StepTrace(self.tracer, clock), self.meter, samples, self.evaluations)

    @contextmanager
    def watching(
        self, store_stats: Callable[[], StoreStats], prefetcher: Prefetcher[JournaledBatch | None]
    ) -> Iterator[None]:
        """Look at the queues of the run now and then while the block runs.

        Args:
            store_stats: Reads the store.
            prefetcher: Holds batches that are ready.
        """
        sampler = OccupancySampler(look_inside(store_stats, prefetcher, self.strip))
        sampler.start(self._settle_thread)
        self.lives.watch(sampler.drain)
        try:
            yield
        finally:
            sampler.close()


class EvaluationRelay:
    """Passes the evaluations that another process writes on to wherever metrics go, as `eval.NAME`.

    Args:
        path: `eval.jsonl`; what it holds already has been passed on before.
        sinks: Where metrics go.
    """

    def __init__(self, path: Path, sinks: MetricSinks) -> None:
        self._path = path
        self._sinks = sinks
        self._offset = path.stat().st_size if path.exists() else 0

    def add(self, *batch: object) -> None:
        """Pass on what was written since the last call, whatever the batch."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            values = msgspec.json.decode(line, type=dict[str, Any])
            step, time_s = values.pop("step"), values.pop("time_s")
            named = {f"eval.{name}": value for name, value in values.items()}
            self._sinks.write_elsewhere(step, time_s, named)
        self._offset += len(whole)
