"""From settled groups to a batch: micro-batches of the ladder's shapes, and fixed denominators.

Legend: N sequences, S slots of all micro-batches, B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.batching.loss_mask import ActionTokens, IntArray, Member, classify_tokens, fresh_lengths
from forebay.batching.packing import Bucket, Packing, plan_packing
from forebay.batching.rows import ROW_DTYPES, TrainRows
from forebay.batching.settings import BatchingSettings
from forebay.batching.stats import BatchStats, measure
from forebay.objectives.advantages import Outcome
from forebay.objectives.denominators import FreshCounts
from forebay.staleness import Fork, StalenessSettings
from forebay.store.protocol import TakenGroup
from forebay.trajectory import PolicyVersion
from forebay.trajectory import Sequence as TokenSequence


class Advantages(Protocol):
    """What an advantage function returns for one group; `forebay.objectives.advantages` makes them."""

    @property
    def advantages(self) -> npt.NDArray[np.float64]:
        """[G] one per member; 0 for a member without a score."""
        ...

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """[G] bool, false where the reward is missing or not finite."""
        ...

    @property
    def zero_spread(self) -> bool:
        """Whether there are scores and all are equal."""
        ...


AdvantageFunction = Callable[[Sequence[Sequence[Outcome]]], Sequence[Advantages]]
DenominatorFunction = Callable[[FreshCounts], float]


class MicroBatch(NamedTuple):
    """Rows of one compiled shape.

    Args:
        bucket: The shape.
        rows: Arrays of that shape; rows that hold nothing are padding.
    """

    bucket: Bucket
    rows: TrainRows


class Batch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What one optimizer update consumes.

    Args:
        now: The version that it differentiates.
        group_ids: Its groups, in order.
        micro_batches: Its rows; gradients are added over them.
        counts: Fresh tokens of the whole batch, and sequences that have one.
        denominator: What the summed loss of all micro-batches is divided by; fixed here, before any
            rejection.
        stats: What is in it and what was left out.
        digest: xxh3 of arrays, shapes and denominator, hexadecimal: equal digests are equal batches.
    """

    now: PolicyVersion
    group_ids: tuple[str, ...]
    micro_batches: tuple[MicroBatch, ...]
    counts: FreshCounts
    denominator: float
    stats: BatchStats
    digest: str

    @property
    def empty(self) -> bool:
        """Whether nothing is left to train: no step is made, weights and optimizer stay as they are."""
        return self.counts.tokens == 0


class FlatSequences(NamedTuple):
    """Sequences to be laid out, and what is trained on them.

    Args:
        tokens: Per sequence, [n] int32.
        temperatures: Per sequence, the temperature it was sampled with.
        target_sequences: [F] the sequence of each fresh token.
        target_positions: [F] its place in that sequence.
        advantages: [F] float32.
        behavior_logprobs: [F] float32, nats.
        staleness: [F] versions.
    """

    tokens: Sequence[npt.NDArray[np.int32]]
    temperatures: Sequence[float]
    target_sequences: IntArray
    target_positions: IntArray
    advantages: npt.NDArray[np.float32]
    behavior_logprobs: npt.NDArray[np.float32]
    staleness: IntArray


def build_batch(
    groups: Sequence[TakenGroup],
    *,
    now: PolicyVersion,
    forks: Sequence[Fork],
    staleness: StalenessSettings,
    settings: BatchingSettings,
    ladder: Sequence[Bucket],
    advantages: Sequence[Advantages],
    denominator: DenominatorFunction,
) -> Batch:
    """Make the batch that one update differentiates at exactly version `now`.

    Members that are masked
    for any reason other than a missing score stay in their group's baseline. All sequences of a trajectory
    share its advantage. A sequence is packed up to its last fresh token, and not at all without one.

    Args:
        groups: Settled groups.
        now: The version being differentiated.
        forks: Where each incarnation after the first began.
        staleness: The staleness rule.
        settings: Batching settings.
        ladder: The only shapes that micro-batches may have.
        advantages: Of each group's members.
        denominator: From the fresh counts to what the loss is divided by.

    Returns:
        The batch; a pure function of the arguments, so that replay makes it again bit for bit.

    Raises:
        StalenessError: A token claims a version that the learner has not made.
        ConfigError: A sequence is too long and `oversize` is "error".
    """
    members: list[Member] = []
    for group, result in zip(groups, advantages, strict=True):
        members += map(Member, group.trajectories, result.advantages.tolist(), result.scored.tolist())
    tokens = classify_tokens(members, now, forks, staleness, settings)
    flat = _fresh_sequences(members, tokens)
    lengths = [len(sequence) for sequence in flat.tokens]
    packing = plan_packing(lengths, ladder)
    return seal_batch(
        now=now,
        group_ids=tuple(group.spec.group_id for group in groups),
        packing=packing,
        flat=flat,
        denominator=denominator,
        stats=measure(members, tokens, sum(lengths), packing, sum(one.zero_spread for one in advantages)),
    )


def seal_batch(
    *,
    now: PolicyVersion,
    group_ids: tuple[str, ...],
    packing: Packing,
    flat: FlatSequences,
    denominator: DenominatorFunction,
    stats: BatchStats,
) -> Batch:
    """Lay the sequences out, and fix denominator and digest."""
    buffers = lay_out(packing, flat)
    counts = FreshCounts(len(flat.target_sequences), len(np.unique(flat.target_sequences)))
    divisor = denominator(counts)
    checksum = xxhash.xxh3_128(repr((packing.buckets, counts, divisor)).encode())
    for buffer in buffers:
        checksum.update(buffer.data)
        buffer.flags.writeable = False
    return Batch(
        now=now,
        group_ids=group_ids,
        micro_batches=_split(packing.buckets, buffers),
        counts=counts,
        denominator=divisor,
        stats=stats,
        digest=checksum.hexdigest(),
    )


def lay_out(packing: Packing, flat: FlatSequences) -> TrainRows:
    """Write sequences into flat buffers, each of all S slots.

    Args:
        packing: Where every sequence goes.
        flat: What is written.

    Returns:
        One-dimensional arrays of S slots; padding is zero.
    """
    lengths = np.array([len(tokens) for tokens in flat.tokens], np.int64)
    starts = np.array(packing.starts, np.int64)
    # Counts up within each sequence.
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    slots = np.repeat(starts, lengths) + positions
    targets = starts[flat.target_sequences] + flat.target_positions
    buffers = TrainRows(*(np.zeros(packing.num_slots, dtype) for dtype in ROW_DTYPES))
    if len(slots):
        buffers.tokens[slots] = np.concatenate(flat.tokens)
    buffers.segment_ids[slots] = np.repeat(np.array(packing.segments, np.int32), lengths)
    buffers.positions[slots] = positions
    buffers.temperature[slots] = np.repeat(np.array(flat.temperatures, np.float32), lengths)
    buffers.loss_mask[targets] = True
    buffers.advantages[targets] = flat.advantages
    buffers.behavior_logprobs[targets] = flat.behavior_logprobs
    buffers.proximal_logprobs[targets] = flat.behavior_logprobs
    buffers.staleness[targets] = flat.staleness
    return buffers


def _split(buckets: Sequence[Bucket], buffers: TrainRows) -> tuple[MicroBatch, ...]:
    micro_batches = []
    start = 0
    for bucket in buckets:
        stop = start + bucket.rows * bucket.length
        rows = TrainRows(*(buffer[start:stop].reshape(bucket) for buffer in buffers))
        micro_batches.append(MicroBatch(bucket, rows))
        start = stop
    return tuple(micro_batches)


def _fresh_sequences(members: Sequence[Member], tokens: ActionTokens) -> FlatSequences:
    """Keep what is trained: sequences with a fresh token, each up to its last one."""
    sequences: list[TokenSequence] = []
    advantages: list[float] = []
    for member in members:
        sequences += member.trajectory.sequences
        advantages += [member.advantage] * len(member.trajectory.sequences)
    lengths = fresh_lengths(tokens, len(sequences))
    kept = np.flatnonzero(lengths)
    place = np.zeros(len(sequences), np.int64)
    place[kept] = np.arange(len(kept))
    fresh = tokens.fresh
    return FlatSequences(
        tokens=[sequences[i].tokens[: lengths[i]] for i in kept],
        temperatures=[sequences[i].sampling.temperature for i in kept],
        target_sequences=place[tokens.sequences[fresh]],
        target_positions=tokens.positions[fresh],
        advantages=np.array(advantages, np.float32)[tokens.sequences[fresh]],
        behavior_logprobs=tokens.behavior_logprobs[fresh],
        staleness=tokens.staleness[fresh],
    )
