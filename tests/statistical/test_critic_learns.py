"""A policy without siblings learns a task of two turns, and its critic learns what to expect."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.learner.annotations import ProximalLogprobs
from forebay.learner.critic import Critic
from forebay.learner.feed import JournaledBatch
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.models.params import init_params
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.models.transformer import forward, output_logits, output_table
from forebay.objectives import ObjectiveSettings, batch_denominator, build_batch_advantages
from forebay.objectives.build import annotations_of, build_objective, build_value_loss
from forebay.objectives.value_settings import ValueSettings
from forebay.staleness import StalenessSettings
from forebay.store.protocol import JournalEntry, TakenGroup
from forebay.trajectory import PolicyVersion, StepRecord
from tests.unit.batching.records import group, sequence, trajectory
from tests.unit.learner import small_run
from tests.unit.models import tiny

BATCHES, EPISODES = 40, 48
BATCHING = BatchingSettings(
    groups=EPISODES, group_size=1, max_length=16, rows=4, row_length=64, max_programs=1
)
LADDER = build_ladder(BATCHING)
OBJECTIVES = {
    "gae": ObjectiveSettings(preset="ppo-critic"),
    "vtrace": ObjectiveSettings(preset="impala"),
}
# What a prompt's right answer is worth. The first turn answers; the second one cannot change anything.
WORTH = {5: 1.0, 6: 0.25}
START, TOOL = 1, 3


@functools.cache
def programs(name: str) -> TrainPrograms:
    objective = OBJECTIVES[name]
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(MeshSettings()),
        OptimizerSettings(learning_rate=1e-2),
        build_objective(objective),
        annotations=annotations_of(objective),
        value_loss=build_value_loss(objective, ValueSettings()),
        value_scale=ValueSettings().learning_rate_scale,
    )
    built.warm_up(LADDER, scored_dtypes=("float32",) if name == "vtrace" else ())
    return built


@jax.jit
def next_logprobs(params: Any, tokens: jax.Array) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    hidden = forward(params, tiny.CONFIG, tokens, jnp.ones_like(tokens), positions)
    logits = output_logits(hidden, output_table(params, hidden.dtype), tiny.CONFIG)
    return jax.nn.log_softmax(logits, axis=-1)


def sampled(params: Any, tokens: np.ndarray, at: int, rng: np.random.Generator) -> np.ndarray:
    """Fill in column `at` of every row; return the logprobs of what was drawn."""
    logprobs = np.asarray(next_logprobs(params, jnp.asarray(tokens)))[:, at - 1]
    tokens[:, at] = (logprobs + rng.gumbel(size=logprobs.shape)).argmax(axis=1)
    return logprobs[np.arange(len(tokens)), tokens[:, at]]


def play(params: Any, number: int, rng: np.random.Generator) -> tuple[TakenGroup, ...]:
    """Return one episode of two turns per group: an even token is right."""
    prompts = rng.choice(list(WORTH), EPISODES)
    tokens = np.zeros((EPISODES, 5), np.int32)
    tokens[:, 0], tokens[:, 1], tokens[:, 3] = START, prompts, TOOL
    logprobs = np.stack([sampled(params, tokens, at, rng) for at in (2, 4)], axis=1)
    groups = []
    for row, prompt in enumerate(prompts.tolist()):
        reward = WORTH[prompt] * float(tokens[row, 2] % 2 == 0)
        one = sequence(tokens[row], [0, 0, 1, 0, 1], logprobs=logprobs[row].tolist(), versions=[number] * 2)
        steps = (StepRecord(reward, "stop", 0.0, 0.0, 0.0), StepRecord(None, "stop", 0.0, 0.0, 0.0))
        name = f"{number}-{row}"
        groups.append(group(trajectory(one, reward=reward, name=name, steps=steps), group_id=name))
    return tuple(groups)


def train(name: str, seed: int) -> tuple[list[float], list[float | None]]:
    """Return the share of right answers and the explained variance of every batch."""
    objective, built, rng = OBJECTIVES[name], programs(name), np.random.default_rng(seed)
    ledger = small_run.Ledger()
    annotators = [ProximalLogprobs(built)] if name == "vtrace" else []
    learner = small_run.make_learner(
        state=built.init_state(init_params(tiny.CONFIG, jax.random.key(seed))),
        built=built,
        annotators=[*annotators, Critic(built, objective)],
        account=ledger,
    )
    for number in range(BATCHES):
        groups = play(learner.state.params, number, rng)
        now = PolicyVersion(0, number)
        updates = build_updates(
            groups,
            now=now,
            forks=(),
            staleness=StalenessSettings(),
            settings=BATCHING,
            ladder=LADDER,
            advantage=build_batch_advantages(objective),
            denominator=functools.partial(batch_denominator, objective),
        )
        entry = JournalEntry(step=number + 1, now=now, forks=(), group_ids=(), digest="")
        learner.train(JournaledBatch(entry, updates, groups))
    right = [[one.trajectories[0].reward > 0 for one in batch.groups] for batch in ledger.batches]
    moments = [batch.updates[0].value_moments for batch in ledger.batches]
    return [float(np.mean(answers)) for answers in right], [one.explained_variance for one in moments]


@pytest.mark.parametrize(("name", "seed"), [("gae", 0), ("gae", 1), ("vtrace", 0)])
def test_the_policy_improves_and_the_critic_learns_what_to_expect(name: str, seed: int) -> None:
    right, explained = train(name, seed)
    assert np.mean(right[:3]) < 0.65
    assert np.mean(right[-5:]) > 0.85
    assert explained[0] == pytest.approx(0.0, abs=1e-9)  # a new head says 0 everywhere
    assert np.mean(explained[-5:]) > 0.7
