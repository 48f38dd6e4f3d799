"""The body of `forebay store replay`: the whole journal of a run, trained again from its stored frames."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from forebay.cli.learner_parts import make_parts, published_digests
from forebay.cli.learner_weights import LearnerWeights
from forebay.cli.reference_model import make_reference
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.errors import ConfigError, WeightsError
from forebay.learner.feed import JournaledBatch
from forebay.learner.loop import Learner
from forebay.learner.replay import Retrained, retrain
from forebay.learner.train_step import StepStats, TrainState, snapshot
from forebay.staleness import effective_version
from forebay.store.protocol import StoreStats
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader

logger = logging.getLogger(__name__)
_REPORT_EVERY = 20


def replay_run(run: Run) -> Retrained:
    """Train the journal of a run again, from its initial weights, and compare with what the run published.

    Weights, journal and trajectories stay as they are. Bits are comparable only on the same kind of machine,
    with as many cores for the learner as the run had.

    Args:
        run: A run with `learner.keep_consumed=true`.

    Returns:
        How many batches were trained, and which versions were compared.

    Raises:
        ConfigError: The run did not keep its journal.
        StoreError: The journal cannot be made again.
        WeightsError: The weights differ, or none of the published ones can be compared.
    """
    if not run.config.learner.keep_consumed:
        raise ConfigError(
            "the run forgot what its checkpoints cover",
            got="learner.keep_consumed=false",
            remedy="Only a run started with learner.keep_consumed=true can be replayed.",
        )
    parts = make_parts(run)
    parts.warm_up()
    weights = LearnerWeights(run)
    parts.programs.frozen.hold(weights.frozen)
    initial = weights.trained
    learner = Learner(
        parts.programs,
        parts.programs.init_state(initial),
        PolicyVersion(0, 0),
        run.config.learner,
        TimeStrip(SystemClock()),
        _Log(),
        parts.annotators(make_reference(run, parts, initial, PolicyVersion(0, 0))),
        publish=_keep_to_oneself,
        save=_keep_to_oneself,
    )
    with run.view_store() as store:
        journal = store.journal()
        published = surviving_digests(WeightReader(run.layout.weights), store.stats())
        retrained = retrain(
            journal,
            store.read_group,
            parts.pack,
            learner.train,
            published,
            lambda: weights.digest(snapshot(learner.state.params)),
        )
    if not retrained.compared:
        raise WeightsError(
            "no published version is left to compare with",
            got=[tuple(version) for version in published],
            limit=f"versions 1 to {retrained.version}",
        )
    return retrained


def surviving_digests(reader: WeightReader, stats: StoreStats) -> dict[PolicyVersion, str]:
    """Return the digest of each published version that is still there and part of the surviving history.

    Args:
        reader: The run's weights.
        stats: Its store, which knows where each incarnation began.
    """
    return {
        version: digest
        for version, digest in published_digests(reader).items()
        if effective_version(version, stats.forks, stats.incarnation) == version.version
    }


class _Log:
    """Says now and then how far it is."""

    def add(
        self, batch: JournaledBatch, version: PolicyVersion, stats: Sequence[StepStats], step_s: float
    ) -> None:
        """Count a batch."""
        if batch.entry.step % _REPORT_EVERY == 0:
            logger.info("step %d made again", batch.entry.step)


def _keep_to_oneself(*_: TrainState | PolicyVersion | object) -> None:
    """Neither publish nor save."""
