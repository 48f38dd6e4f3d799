"""Demonstrations become the batches that reinforcement learning trains on, with advantage 1."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.batching.batch import Batch, DenominatorFunction, FlatSequences, seal_batch
from forebay.batching.loss_mask import IntArray
from forebay.batching.packing import Bucket, Packing, plan_packing
from forebay.batching.settings import BatchingSettings
from forebay.batching.stats import BatchStats
from forebay.errors import ConfigError, RecordError
from forebay.trajectory import PolicyVersion


class Demonstration(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One sequence to imitate.

    Args:
        name: For messages.
        tokens: [T] int32.
        loss_mask: [T] bool, true at the tokens to imitate. The first token is never one: nothing predicts it.
    """

    name: str
    tokens: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.tokens.shape != self.loss_mask.shape or self.tokens.ndim != 1:
            raise RecordError(
                "mask_mismatch",
                f"demonstration {self.name} needs one mask value per token",
                got=self.loss_mask.shape,
                limit=self.tokens.shape,
            )
        if self.tokens.dtype != np.int32 or self.loss_mask.dtype != np.bool_:
            raise RecordError(
                "bad_array",
                f"demonstration {self.name} needs int32 tokens and a bool mask",
                got=f"{self.tokens.dtype}, {self.loss_mask.dtype}",
            )


def shuffled_batches(
    demonstrations: Sequence[Demonstration], *, epochs: int, batch_tokens: int, seed: int
) -> Iterator[tuple[Demonstration, ...]]:
    """Yield the demonstrations of each step, shuffled anew in every epoch.

    Args:
        demonstrations: All of them.
        epochs: Times that each is shown.
        batch_tokens: A step takes demonstrations until it has at least this many tokens.
        seed: Of the order; the same seed gives the same steps.

    Yields:
        The demonstrations of one step; the last of an epoch may be smaller.
    """
    rng = random.Random(seed)
    for _ in range(epochs):
        order = list(demonstrations)
        rng.shuffle(order)
        step: list[Demonstration] = []
        num_tokens = 0
        for demonstration in order:
            step.append(demonstration)
            num_tokens += len(demonstration.tokens)
            if num_tokens >= batch_tokens:
                yield tuple(step)
                step, num_tokens = [], 0
        if step:
            yield tuple(step)


def check_lengths(demonstrations: Sequence[Demonstration], settings: BatchingSettings) -> None:
    """Refuse demonstrations that are too long, if that is an error: for all of them, before training begins.

    Args:
        demonstrations: All of them.
        settings: Batching settings; `max_length` and `oversize` matter.

    Raises:
        ConfigError: A demonstration is too long and `oversize` is "error".
    """
    ends = [_end(_targets(demonstration)) for demonstration in demonstrations]
    num_too_long = sum(end > settings.max_length for end in ends)
    if num_too_long and settings.oversize == "error":
        raise ConfigError(
            f"{num_too_long} of {len(ends)} demonstrations are longer than batching.max_length",
            got=f"up to {max(ends)} tokens",
            limit=settings.max_length,
            remedy=f"Raise batching.max_length and generator.context to {max(ends)} or more, or set "
            'batching.oversize to "drop" or "truncate".',
        )


def build_supervised_batch(
    demonstrations: Sequence[Demonstration],
    *,
    now: PolicyVersion,
    settings: BatchingSettings,
    ladder: Sequence[Bucket],
    denominator: DenominatorFunction,
) -> Batch:
    """Make the batch of one supervised step.

    Args:
        demonstrations: The step's demonstrations.
        now: The version being differentiated.
        settings: Batching settings; `max_length` and `oversize` matter.
        ladder: The only shapes that micro-batches may have.
        denominator: From the fresh counts to what the loss is divided by.

    Raises:
        ConfigError: A demonstration is too long and `oversize` is "error".
    """
    check_lengths(demonstrations, settings)
    kept, too_long = _fit(demonstrations, settings)
    sizes = np.array([len(target) for _, target in kept], np.int64)
    num_targets = int(sizes.sum())
    flat = FlatSequences(
        tokens=[demonstration.tokens[: _end(target)] for demonstration, target in kept],
        temperatures=[1.0] * len(kept),
        target_sequences=np.repeat(np.arange(len(kept)), sizes),
        target_positions=np.concatenate([np.empty(0, np.int64), *(target for _, target in kept)]),
        advantages=np.ones(num_targets, np.float32),
        behavior_logprobs=np.zeros(num_targets, np.float32),
        staleness=np.zeros(num_targets, np.int64),
    )
    packing = plan_packing([len(tokens) for tokens in flat.tokens], ladder)
    stats = _measure(demonstrations, flat, packing, too_long)
    return seal_batch(now=now, group_ids=(), packing=packing, flat=flat, denominator=denominator, stats=stats)


def _fit(
    demonstrations: Sequence[Demonstration], settings: BatchingSettings
) -> tuple[list[tuple[Demonstration, IntArray]], tuple[str, ...]]:
    """Return the demonstrations with targets within max_length, with those, and the too long ones."""
    kept, too_long = [], []
    for demonstration in demonstrations:
        targets = _targets(demonstration)
        if _end(targets) > settings.max_length:
            too_long.append(demonstration.name)
            targets = targets[targets < (settings.max_length if settings.oversize == "truncate" else 0)]
        if len(targets):
            kept.append((demonstration, targets))
    return kept, tuple(too_long)


def _measure(
    demonstrations: Sequence[Demonstration],
    flat: FlatSequences,
    packing: Packing,
    too_long: tuple[str, ...],
) -> BatchStats:
    sizes = [len(_targets(demonstration)) for demonstration in demonstrations]
    num_trained, num_real = len(flat.target_positions), sum(map(len, flat.tokens))
    num_cut = sum(sizes) - num_trained
    return BatchStats(
        trajectories=len(demonstrations),
        branches=0,
        unscored=0,
        truncated=0,
        discarded=sum(size > 0 for size in sizes) - len(flat.tokens),
        zero_spread_groups=0,
        reward_mean=None,
        too_long=too_long,
        masked_tokens={"too_long": num_cut} if num_cut else {},
        action_tokens_by_turn=(sum(sizes),),
        fresh_tokens_by_turn=(num_trained,),
        fresh_tokens_by_trajectory=tuple(
            np.bincount(flat.target_sequences, minlength=len(flat.tokens)).tolist()
        ),
        staleness_histogram=(num_trained,) if num_trained else (),
        kv_staleness_max=0,
        real_tokens=num_real,
        padded_tokens=packing.num_slots - num_real,
        micro_batches=len(packing.buckets),
    )


def _targets(demonstration: Demonstration) -> IntArray:
    targets = np.flatnonzero(demonstration.loss_mask)
    return targets[targets > 0]


def _end(targets: IntArray) -> int:
    """Return the length of a sequence up to and including its last target."""
    return int(targets[-1]) + 1 if len(targets) else 0
