"""Minibatches and epochs: what one take of groups becomes, each with its own version and denominators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import xxhash

from forebay.batching.batch import AdvantageFunction, Batch, DenominatorFunction, build_batch
from forebay.batching.packing import Bucket
from forebay.batching.settings import BatchingSettings
from forebay.errors import ConfigError
from forebay.objectives.advantages import Outcome
from forebay.staleness import Fork, StalenessSettings
from forebay.store.protocol import TakenGroup
from forebay.trajectory import PolicyVersion

Part = TypeVar("Part")


def build_updates(
    groups: Sequence[TakenGroup],
    *,
    now: PolicyVersion,
    forks: Sequence[Fork],
    staleness: StalenessSettings,
    settings: BatchingSettings,
    ladder: Sequence[Bucket],
    advantage: AdvantageFunction,
    denominator: DenominatorFunction,
) -> tuple[Batch, ...]:
    """Make one batch per optimizer update: every minibatch, once per epoch.

    Advantages are taken once, over the whole take: within each group as the store made it, whatever its task,
    and by what the objective says about all of them together.

    The u-th update differentiates version now + u, and its tokens are checked against that version. Every
    update counts as a version, also one that turns out empty and changes nothing: so the numbering is known
    ahead.

    Args:
        groups: Settled groups, in the order in which they were taken.
        now: The version that the first update differentiates.
        forks: Where each incarnation after the first began.
        staleness: The staleness rule.
        settings: Batching settings; `minibatches` and `epochs` say how many updates.
        ladder: The only shapes that micro-batches may have.
        advantage: From the outcomes of all groups to the advantages of their members.
        denominator: From the fresh counts of one update to what its loss is divided by.

    Returns:
        `settings.updates_per_batch` batches, in order.

    Raises:
        StalenessError: A token claims a version that the learner has not made.
        ConfigError: Groups cannot be split evenly, or a sequence is too long and `oversize` is "error".
    """
    advantages = advantage([outcomes_of(group) for group in groups])
    pairs = list(zip(groups, advantages, strict=True))
    parts = split_minibatches(pairs, settings.minibatches)
    return tuple(
        build_batch(
            [group for group, _ in part],
            now=PolicyVersion(now.incarnation, now.version + update),
            forks=forks,
            staleness=staleness,
            settings=settings,
            ladder=ladder,
            advantages=[members for _, members in part],
            denominator=denominator,
        )
        for update, part in enumerate(parts * settings.epochs)
    )


def outcomes_of(group: TakenGroup) -> list[Outcome]:
    """Return what a group's members came to, in their order."""
    return [
        Outcome(t.reward, t.num_action_tokens, tuple(step.reward for step in t.steps))
        for t in group.trajectories
    ]


def split_minibatches(groups: Sequence[Part], num_minibatches: int) -> list[tuple[Part, ...]]:
    """Split into minibatches of whole groups, in order: the oldest are trained first.

    Raises:
        ConfigError: The number of groups is not a multiple of the number of minibatches.
    """
    size, rest = divmod(len(groups), num_minibatches)
    if rest:
        raise ConfigError(
            "minibatches hold whole groups, all equally many",
            got=f"{len(groups)} groups in {num_minibatches} minibatches",
            remedy="Make batching.groups a multiple of batching.minibatches.",
        )
    return [tuple(groups[i * size : (i + 1) * size]) for i in range(num_minibatches)]


def updates_digest(batches: Sequence[Batch]) -> str:
    """Return one digest of all updates made from one take, for the journal."""
    return xxhash.xxh3_128_hexdigest(" ".join(batch.digest for batch in batches).encode())
