"""Training without waiting: the product's programs, packing and objective, and what each step was like."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.staleness_study.problems import Problem
from forebay.batching.batch import Batch
from forebay.batching.ladder import build_ladder
from forebay.batching.packing import Bucket
from forebay.batching.updates import build_updates
from forebay.learner.annotations import Annotator, ProximalLogprobs
from forebay.learner.clip_bounds import ClipBounds
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import StepStats, TrainState, snapshot
from forebay.models.params import Params
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective
from forebay.objectives.clip_rules import build_clip_rule
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.inputs import summarize
from forebay.objectives.settings import ObjectiveSettings, build_batch_advantages
from forebay.staleness import Fork, StalenessSettings
from forebay.store.protocol import TakenGroup
from forebay.trajectory import PolicyVersion


class Recipe(NamedTuple):
    """What one set of compiled training programs is for.

    Attributes:
        objective: What is minimized.
        learning_rate: Highest learning rate.
        optimizer: Other settings of the optimizer that differ from the problem's.
    """

    objective: ObjectiveSettings
    learning_rate: float
    optimizer: Mapping[str, Any] = {}


class Step(NamedTuple):
    """What one optimizer step was like.

    Attributes:
        reward: Mean reward of the batch's episodes.
        staleness: Mean staleness of its trained tokens, versions.
        staleness_max: The oldest of them.
        tokens: Trained tokens.
        masked: Sampled tokens left out because they were too old.
        episodes: Episodes of the batch.
        discarded: Those of them without a trained token.
        unscored: Those without a reward, because a deadline cut them.
        ess: Effective share of the importance weights.
        rejected: Share of trained tokens that a rejection removed.
        clipped: Share of trained tokens without gradient because of a clip.
        k3: Divergence of the current policy from the one that sampled, nats a token.
        entropy: Nats a token.
        finite: Whether loss and gradient were finite.
    """

    reward: float
    staleness: float
    staleness_max: int
    tokens: int
    masked: int
    episodes: int
    discarded: int
    unscored: int
    ess: float
    rejected: float
    clipped: float
    k3: float
    entropy: float
    finite: bool


class Trainer:
    """The compiled training programs of one recipe; begins trainings at the warm start.

    Args:
        problem: What is trained.
        recipe: How.
    """

    def __init__(self, problem: Problem, recipe: Recipe) -> None:
        config = problem.config
        self.recipe = recipe
        self._problem = problem
        self._ladder: tuple[Bucket, ...] = build_ladder(config.batching, 1)
        optimizer = config.optimizer.model_copy(
            update={"learning_rate": recipe.learning_rate, **recipe.optimizer}
        )
        self._programs = TrainPrograms(
            problem.model,
            make_mesh(config.mesh),
            optimizer,
            build_objective(recipe.objective),
            config.compute,
            annotations_of(recipe.objective),
        )
        rule = build_clip_rule(recipe.objective)
        self._annotators = () if rule is None else (ProximalLogprobs(self._programs), ClipBounds(rule))
        scored = {jnp.dtype(jnp.float32)} if self._annotators else set()
        self._programs.warm_up(self._ladder, scored_dtypes=scored)

    def begin(self) -> Training:
        """Return a training at version 0 with the warm start's weights."""
        state = self._programs.init_state(self._problem.params)
        return Training(self._programs, state, self._annotators)

    def pack(
        self,
        groups: Sequence[TakenGroup],
        now: PolicyVersion,
        forks: Sequence[Fork],
        *,
        staleness: StalenessSettings,
    ) -> tuple[Batch, ...]:
        """Make the batches of some groups, by the problem's batching and the recipe's objective."""
        return build_updates(
            groups,
            now=now,
            forks=forks,
            staleness=staleness,
            settings=self._problem.config.batching,
            ladder=self._ladder,
            advantage=build_batch_advantages(self.recipe.objective),
            denominator=functools.partial(batch_denominator, self.recipe.objective),
        )


class Training:
    """The state of one run, and what its steps were like.

    Args:
        programs: Compiled.
        state: Parameters and optimizer; donated to the first step.
        annotators: Write what the objective wants to know of a batch, in this order.

    Attributes:
        steps: One per batch.
    """

    def __init__(
        self, programs: TrainPrograms, state: TrainState, annotators: Sequence[Annotator] = ()
    ) -> None:
        self._programs = programs
        self._annotators = annotators
        self._state = state
        self._accumulator = programs.zeros()
        self.steps: list[Step] = []

    def train(self, batch: Batch) -> Params:
        """Take one optimizer step as the learner does; return a host copy of the parameters that it made."""
        for annotator in self._annotators:
            (batch,) = annotator.annotate(self._state.params, (batch,))
        for micro in batch.micro_batches:
            rows = self._programs.place(micro.rows)
            self._accumulator = self._programs.accumulate(
                self._state.params, self._accumulator, rows, batch.denominator
            )
        self._state, self._accumulator, stats = self._programs.apply(self._state, self._accumulator)
        self.steps.append(_step_of(batch, jax.device_get(stats)))
        params: Params = snapshot(self._state.params)
        return params


def _step_of(batch: Batch, stats: StepStats) -> Step:
    found, packed = summarize(stats.sums), batch.stats
    return Step(
        reward=packed.reward_mean or 0.0,
        staleness=packed.staleness_mean,
        staleness_max=packed.staleness_max,
        tokens=batch.counts.tokens,
        masked=packed.masked_tokens.get("stale", 0),
        episodes=packed.trajectories,
        discarded=packed.discarded,
        unscored=packed.unscored,
        ess=found.ess,
        rejected=found.rejected_fraction,
        clipped=found.clip_fraction,
        k3=found.k3,
        entropy=found.entropy,
        finite=bool(stats.finite),
    )
