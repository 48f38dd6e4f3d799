"""The body of `forebay learn`: a learner assembled from a run's configuration, resumed where it stopped."""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from forebay.batching.prefetch import Prefetcher
from forebay.cli.gang_learning import LedSource, follow_learner, join_gang, make_lead, shared_with
from forebay.cli.learner_parts import (
    make_dispatcher,
    make_feed,
    make_parts,
    published_digests,
    warm_up,
)
from forebay.cli.learner_telemetry import LearnerTelemetry
from forebay.cli.learner_weights import LearnerWeights
from forebay.cli.reference_model import make_reference
from forebay.cli.roles import keep_memory_on_cpus
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.launch.placement import move_thread_to
from forebay.learner.bare import full_rows_like
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.checkpoint_stats import SaveReport
from forebay.learner.feed import JournaledBatch
from forebay.learner.gang.gang import Gang
from forebay.learner.gang.joining import Place
from forebay.learner.gang.lead import Lead
from forebay.learner.loop import Learner
from forebay.learner.meter import summarize_run
from forebay.learner.publishing import Publisher
from forebay.learner.reference import SavedState
from forebay.learner.replay import replay
from forebay.learner.source import WatchedSource
from forebay.learner.train_step import TrainState
from forebay.models.compiles import CompileCounter
from forebay.report.decision_panel import with_decisions
from forebay.store.protocol import Rewound, Store
from forebay.telemetry.faults import fault_point
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import write_summary
from forebay.telemetry.watchdog import Watchdog
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader

logger = logging.getLogger(__name__)


def run_learner(run: Run, background_cpus: tuple[int, ...] = (), place: Place | None = None) -> None:
    """Train a run from where it stopped until it is done, stopped, or makes no progress.

    Args:
        run: The run; its lock is held by this process or its supervisor.
        background_cpus: Cores for the threads beside the training step; empty leaves them where they are.
        place: Where this process is among those of its learner; None if it is the only one.

    Raises:
        ForebayError: What ended it before it was done.
    """
    settle_thread = functools.partial(move_thread_to, background_cpus)
    with ExitStack() as stack:
        gang = None if place is None else stack.enter_context(join_gang(run, place))
        keep_memory_on_cpus()
        if gang is not None and gang.process > 0:
            follow_learner(run, gang, settle_thread, stack)
            return
        session = LearnerSession(run, settle_thread, stack, gang)
        session.resume()
        session.train()
        session.finish()


class LearnerSession:
    """Everything that one learner process holds, in the order in which it comes to life.

    Args:
        run: The run.
        settle_thread: Moves a background thread off the learner's cores; called inside each.
        stack: Closes what was opened.
        gang: The other processes of the learner; None if this is the only one.
    """

    def __init__(
        self, run: Run, settle_thread: Callable[[], None], stack: ExitStack, gang: Gang | None = None
    ) -> None:
        config = self.config = run.config
        self.run = run
        self.settle_thread = settle_thread
        self.clock = SystemClock()
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        self.compiles = stack.enter_context(CompileCounter())
        self.store: Store = run.open_store()
        stack.callback(self.store.close)
        self.weights = WeightPublisher(run.layout.weights, run_id=run.run_id, settings=config.weights)
        self.telemetry = LearnerTelemetry(
            run, self.store.stats, self.compiles.since_warm, settle_thread, self.clock, stack
        )
        self.tracer, self.strip = self.telemetry.tracer, self.telemetry.strip
        self.meter, self.bare = self.telemetry.meter, self.telemetry.bare
        self.parts = make_parts(run)
        self.lead: Lead = make_lead(gang, self.parts, config, settle_thread)
        self.publisher = Publisher(self._publish, settle_thread)
        stack.callback(self.publisher.close)
        self.checkpointer = Checkpointer(
            run.checkpoints,
            keep=config.learner.keep_checkpoints,
            background=True,
            timeout_s=config.learner.checkpoint_timeout_s,
            peers=self.lead.peers,
            on_start=settle_thread,
            on_saved=self._saved,
            tracer=self.tracer,
            clock=self.clock,
        )
        stack.callback(self.checkpointer.close)
        self.last_version = config.learner.steps * config.updates_per_batch

    def resume(self) -> None:
        """Compile, restore the newest checkpoint, replay the journal, and publish."""
        self.begun = LearnerWeights(self.run)
        initial = self.begun.trained
        if WeightReader(self.run.layout.weights).latest() is None:
            # So that generators load and compile while this process does.
            self.begun.publish(self.weights, PolicyVersion(0, 0), initial)
        self.parts.programs.frozen.hold(self.begun.frozen)
        with self.strip.span("compiling"):
            warm_up(self.run, self.parts, self.bare, initial, self.lead.ready)
        restored = self.checkpointer.restore_newest(self.parts.template)
        saved: SavedState | None = restored.state if restored else None
        step = restored.cursor.version.version if restored else 0
        rewound = self.store.rewind(step)
        self.incarnation = rewound.incarnation
        self.lead.incarnation(self.incarnation)
        fault_point("rewound", step)
        version = PolicyVersion(rewound.incarnation, step)
        self.reference = make_reference(self.run, self.parts, initial, version, saved)
        state = saved.train_state if saved else self.parts.programs.init_state(initial)
        self.learner = self._make_learner(state, version)
        self.compiles.mark_warm()
        _replay(self, rewound)
        self.meter.restart()
        if self.incarnation or self.learner.version.version:
            self.learner.publish()

    def train(self) -> None:
        """Train until the run is done or a stop is asked for."""
        with ExitStack() as stack:
            self.dispatcher = make_dispatcher(
                self.config, self.store, self.incarnation, self.last_version, self.tracer
            )
            self.dispatcher.start(self.settle_thread)
            stack.callback(self.dispatcher.stop)
            source = self._make_source()
            stack.callback(source.stop)
            stack.enter_context(self.telemetry.watching(self.store.stats, self.prefetcher))
            self.learner.run(LedSource(source, self.lead), self.last_version, self._ended)
            self.shares = self.strip.read()

    def finish(self) -> None:
        """Save and publish what was trained last, and write the summary."""
        self.learner.checkpoint()
        self.checkpointer.wait()
        self.publisher.flush()
        if self.store.stats().published < self.learner.version:  # it ended between two publications
            self.learner.publish()
            self.publisher.flush()
        # Actors have nothing left to do, so this is the step alone.
        if self.meter.window.last is not None:
            rows = full_rows_like(self.meter.window.last)
            self.lead.calibrate(rows)
            self.bare.calibrate(self.parts.programs, self.learner.state, rows)
        config = self.config
        summary = summarize_run(
            self.meter,
            self.shares,
            self.store.stats(),
            self.run.layout.metrics,
            max_staleness=config.staleness.max_staleness,
            group_size=config.batching.group_size,
            compiles=self.compiles.since_warm(),
        )
        write_summary(self.run.layout.summary, with_decisions(summary, self.run.layout.logs))
        self.telemetry.evaluations.add()
        for program in self.compiles.unplanned():
            logger.warning("compiled after warm-up: %s", program.name)
        self.lead.end()

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def _ended(self) -> bool:
        self.checkpointer.check()
        limit_s = self.config.learner.max_time_s
        self.stopping = self.stopping or self.lead.stop_asked()
        return self.stopping or (limit_s is not None and self.source.training_s > limit_s)

    def _make_learner(self, state: TrainState, version: PolicyVersion) -> Learner:
        return Learner(
            self.parts.programs,
            state,
            version,
            self.config.learner,
            self.strip,
            self.telemetry.accounts,
            self.parts.annotators(self.reference),
            self.publisher.submit,
            self._save,
            self.lead.copy,
        )

    def train_led(self, batch: JournaledBatch) -> None:
        """Train one batch in every process."""
        self.lead.share(batch)
        self.lead.train(batch)
        self.learner.train(batch)

    def _make_source(self) -> WatchedSource:
        config = self.config
        feed = make_feed(config, self.store, self.incarnation, self.parts.pack, self.dispatcher, self.tracer)
        self.prefetcher = prefetcher = Prefetcher[JournaledBatch | None](
            shared_with(self.lead, feed.next),
            first=self.learner.version.version,
            last=self.last_version,
            stride=config.updates_per_batch,
            depth=config.batching.prefetch,
            clock=self.clock,
        )
        self.source = WatchedSource(
            prefetcher,
            feed,
            Watchdog(self.clock, limit_s=config.learner.no_progress_s),
            self.dispatcher,
            self.publisher,
            self.store.stats,
            self._ended,
            self.clock,
            self.telemetry.waits,
            self.tracer,
        )
        prefetcher.start(self.settle_thread)
        return self.source

    def _publish(self, version: PolicyVersion, copy: Any) -> None:
        """Runs in the publisher's thread: write the weights, then free the credit of their groups."""
        params = self.lead.copied(copy)
        arguments = {"version": version.version}
        with self.tracer.span("write weights", arguments=arguments):
            self.begun.publish(self.weights, version, params)
        fault_point("weights_visible", version.version)
        with self.tracer.span("store.publish", arguments=arguments):
            self.store.publish(version, incarnation=self.incarnation)
        fault_point("published", version.version)
        if hasattr(self, "dispatcher"):
            self.dispatcher.wake()

    def _save(self, state: TrainState, version: PolicyVersion) -> None:
        cursor = CheckpointCursor(run_id=self.run.run_id, version=version)
        saved = SavedState(*state) if self.reference is None else self.reference.saved_with(state)
        self.lead.save(version.version)
        self.checkpointer.save(saved, cursor, metric=newest_evaluation(self.run, version.version))

    def _saved(self, step: int, report: SaveReport) -> None:
        """Runs in the checkpoint's thread: let the store forget what the oldest checkpoint covers."""
        self.telemetry.saves.add(report)
        fault_point("checkpointed", step)
        oldest = self.checkpointer.oldest_verified_step()
        if oldest is not None and not self.config.learner.keep_consumed:
            with self.tracer.span("store.commit", arguments={"version": oldest}):
                self.store.commit(oldest, incarnation=self.incarnation)
            fault_point("committed", step)


def _replay(session: LearnerSession, rewound: Rewound) -> None:
    """Train again what was consumed after the checkpoint."""
    if not rewound.journal:
        return
    known = published_digests(WeightReader(session.run.layout.weights))
    count = replay(
        session.store,
        rewound.journal,
        rewound.incarnation,
        session.parts.pack,
        session.train_led,
        lambda made: [
            digest
            for version, digest in known.items()
            if version.version == made.version and version.incarnation >= made.incarnation
        ],
        lambda: session.begun.digest(session.lead.copied(session.lead.copy(session.learner.state.params))),
    )
    logger.info("replayed %d batches; continuing at version %d", count, session.learner.version.version)


def newest_evaluation(run: Run, version: int) -> float | None:
    """Return the reward of the newest evaluation at or before a version; None if there is none."""
    path = run.layout.path / "eval.jsonl"
    if not path.exists():
        return None
    rewards = [
        line["reward"]
        for line in read_metrics(path)
        if line["step"] <= version and line.get("reward") is not None
    ]
    return rewards[-1] if rewards else None
