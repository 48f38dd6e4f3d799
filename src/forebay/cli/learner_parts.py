"""What training and replaying a run are built from alike, so that both compute the same bits."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from forebay.batching.ladder import build_ladder
from forebay.batching.packing import Bucket
from forebay.batching.updates import build_updates, outcomes_of
from forebay.cli.runs import Run, builtin_or_path
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.envs.registry import load_task_sets
from forebay.envs.tasks import TaskStream, WeightedTasks
from forebay.errors import WeightsError
from forebay.learner.annotations import Annotator, ProximalLogprobs
from forebay.learner.bare import BareSpeed, full_rows
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.clip_bounds import ClipBounds
from forebay.learner.critic import Critic
from forebay.learner.dispatch import Dispatcher
from forebay.learner.fairness import FairShares
from forebay.learner.families import Posed
from forebay.learner.feed import DynamicSampling, Feed, Packer
from forebay.learner.programs import TrainPrograms
from forebay.learner.reference import Reference, ReferencePrograms, SavedState
from forebay.learner.siblings import FinishedSiblings, decode_families
from forebay.learner.train_step import snapshot
from forebay.models.checkpoint_io import load_model
from forebay.models.params import Params, init_params
from forebay.models.router_loss import router_loss_weights
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective, build_value_loss
from forebay.objectives.clip_rules import build_clip_rule
from forebay.objectives.dapo import has_signal
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.settings import build_batch_advantages, shaped_rewards
from forebay.objectives.siblings import among_siblings
from forebay.staleness import Shares
from forebay.store.protocol import GroupSpec, Store, TakenGroup
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion, Task
from forebay.weights.reader import WeightReader

logger = logging.getLogger(__name__)

# A group may take this many times its environment's longest episode: for members claimed later, and retries.
_DEADLINE_EPISODES = 2.0


class LearnerParts(NamedTuple):
    """What decides the numbers of a run.

    Attributes:
        ladder: Every shape of a micro-batch.
        programs: The training programs; not yet compiled.
        pack: From groups to the batches of their updates.
        recompute: Whether the objective wants the logprobs of the policy before the first update.
        reference: What the reference policy is made with; None if the objective wants none.
        critic: Judges the tokens of a batch; None if the objective has none.
        bounds: Finds where ratios are clipped; None if the settings say it.
    """

    ladder: tuple[Bucket, ...]
    programs: TrainPrograms
    pack: Packer
    recompute: bool
    reference: ReferencePrograms | None
    critic: Critic | None
    bounds: ClipBounds | None

    def warm_up(self) -> tuple[str, ...]:
        """Compile every program; return their names."""
        dtypes = {jnp.dtype(jnp.float32)} if self.recompute else set()
        if self.reference is None:
            return self.programs.warm_up(self.ladder, scored_dtypes=dtypes)
        dtypes.add(self.reference.dtype)
        return self.programs.warm_up(self.ladder, scored_dtypes=dtypes) + self.reference.warm_up()

    def template(self, cursor: CheckpointCursor) -> SavedState:
        """Return the shape of a checkpoint, by where in the run it was saved."""
        if self.reference is None:
            return SavedState(*self.programs.abstract_state)
        return self.reference.template(cursor)

    def annotators(self, reference: Reference | None) -> tuple[Annotator, ...]:
        """Return what is written into a batch before its first update."""
        proximal = ProximalLogprobs(self.programs) if self.recompute else None
        # In this order: V-trace looks at the logprobs of the current policy, and bounds at advantages too.
        wanted: tuple[Annotator | None, ...] = (proximal, reference, self.critic, self.bounds)
        return tuple(annotator for annotator in wanted if annotator is not None)


def make_parts(run: Run) -> LearnerParts:
    """Return the parts of a run's learner; nothing is compiled yet."""
    config = run.config
    ladder = tuple(build_ladder(config.batching, config.mesh.row_multiple, config.mesh.length_multiple))
    programs = TrainPrograms(
        run.model,
        make_mesh(config.mesh),
        config.optimizer,
        build_objective(config.objective),
        config.compute,
        annotations_of(config.objective),
        build_value_loss(config.objective, config.value),
        config.value.learning_rate_scale,
        router_loss_weights(config.model),
        config.model.adapters,
    )
    pack: Packer = functools.partial(_pack, config=config, ladder=ladder)
    reference = None
    if config.objective.kl_coef:
        # Adapters are small, and what is added to a frozen model must not be rounded twice.
        dtype = "float32" if config.model.adapters else config.reference.held_dtype(config.compute)
        reference = ReferencePrograms(programs, config.reference, dtype, config.updates_per_batch)
    rule = build_clip_rule(config.objective)
    return LearnerParts(
        ladder,
        programs,
        pack,
        recompute=config.objective.needs_current_logprobs,
        reference=reference,
        critic=Critic(programs, config.objective) if config.objective.has_critic else None,
        bounds=None if rule is None else ClipBounds(rule),
    )


def initial_params(run: Run) -> Params:
    """Return the parameters that the run begins with: loaded, or drawn from its seed."""
    if run.config.model.path is None:
        drawn: Params = jax.device_get(init_params(run.model, jax.random.key(run.config.run.seed)))
        return drawn
    return load_model(builtin_or_path(run.config.model.path), num_real_tokens=run.chat.vocabulary)[1]


def warm_up(
    run: Run, parts: LearnerParts, bare: BareSpeed, params: Params, ready: Callable[[], None]
) -> None:
    """Compile everything, and time the step alone; every process of a learner does this alike.

    Args:
        run: The run.
        parts: Its programs.
        bare: Told how fast the step is.
        params: Host parameters of what is trained, of any values.
        ready: Called between compiling and the first step.
    """
    programs = parts.programs
    names = parts.warm_up()
    ready()
    rows = {bucket: full_rows(bucket, run.config.generator.context // 2) for bucket in parts.ladder}
    bare.calibrate(programs, programs.init_state(params), rows)
    snapshot(params)
    logger.info("%d programs: %s", len(names), ", ".join(names))


def published_digests(reader: WeightReader) -> dict[PolicyVersion, str]:
    """Return the digest of every version that is still there, oldest first; damaged ones are left out."""
    digests: dict[PolicyVersion, str] = {}
    for version in reader.versions():
        try:
            digests[version] = reader.digest(version)
        except WeightsError as error:
            logger.warning("cannot compare with version %s: %s", tuple(version), error)
    return digests


def make_feed(
    config: RunConfig,
    store: Store,
    incarnation: int,
    pack: Packer,
    dispatcher: Dispatcher,
    tracer: Tracer = OFF,
) -> Feed:
    """Return the source of a learner's batches; groups that came too late go back to the dispatcher."""
    groups_per_batch = config.division.groups(config.batching)
    siblings = None
    if needed := config.division.siblings_needed:
        # More than are in flight, so that none is forgotten whose siblings may still come.
        most_families = 2 * config.staleness.batches_in_flight * config.batching.groups
        siblings = FinishedSiblings(needed, store.read_group, store.journal(), most_families)
    return Feed(
        store,
        incarnation,
        store.stats().forks,
        pack,
        config.staleness,
        groups_per_batch,
        config.updates_per_batch,
        dispatcher.repeat,
        dispatcher.fairness,
        tracer=tracer,
        sampling=_dynamic_sampling(config),
        siblings=siblings,
    )


def make_dispatcher(
    config: RunConfig, store: Store, incarnation: int, last_version: int, tracer: Tracer = OFF
) -> Dispatcher:
    """Return what keeps the store filled with a run's groups."""
    stream = task_stream(config)
    longest_s = max(settings.episode_timeout_s for settings in config.environment.values())
    division = config.division

    def make_group(serial: int, posed: Posed, min_version: PolicyVersion) -> GroupSpec:
        return GroupSpec(
            group_id=f"g{serial:08d}",
            serial=serial,
            task=posed if isinstance(posed, Task) else stream.task_at(serial, posed),
            group_size=division.size,
            min_group_size=division.min_size,
            min_version=min_version,
            deadline_s=longest_s * _DEADLINE_EPISODES,
            member_bytes=config.member_bytes,
        )

    return Dispatcher(
        store,
        incarnation,
        make_group,
        config.staleness,
        division.groups(config.batching),
        config.updates_per_batch,
        last_version,
        make_fairness(config, stream.shares),
        tracer=tracer,
        parts=division.parts,
    )


def make_fairness(config: RunConfig, shares: Shares) -> FairShares | None:
    """Return how a run's environments share its batches; None if it has but one."""
    if len(shares.names) < 2:
        return None
    return FairShares(
        shares,
        config.division.groups(config.batching),
        patience_s=config.staleness.share_patience_s,
        # A dead environment must not outlast the patience with the whole run.
        longest_patience_s=config.learner.no_progress_s / 2,
        clock=SystemClock(),
    )


def task_stream(config: RunConfig) -> TaskStream:
    """Return the endless stream of training tasks, environments sharing it by weight."""
    sources = [
        WeightedTasks(load_task_sets(settings).train, settings.weight)
        for settings in config.environment.values()
    ]
    return TaskStream(sources, config.run.seed, repeats=config.division.parts)


def _dynamic_sampling(config: RunConfig) -> DynamicSampling | None:
    if not config.objective.dynamic_sampling:
        return None

    def signals(group: TakenGroup) -> bool:
        return has_signal(shaped_rewards(config.objective, outcomes_of(group)))

    groups_per_batch = config.division.groups(config.batching)
    return DynamicSampling(signals, config.objective.dynamic_sampling * groups_per_batch)


def _pack(
    groups: Sequence[TakenGroup],
    now: PolicyVersion,
    forks: Any,
    packing: bytes,
    *,
    config: RunConfig,
    ladder: Any,
) -> Any:
    advantage = build_batch_advantages(config.objective)
    if config.division.siblings_needed:
        names = [group.spec.group_id for group in groups]
        advantage = among_siblings(advantage, names, list(decode_families(packing).values()))
    return build_updates(
        groups,
        now=now,
        forks=forks,
        staleness=config.staleness,
        settings=config.batching,
        ladder=ladder,
        advantage=advantage,
        denominator=functools.partial(batch_denominator, config.objective),
    )
