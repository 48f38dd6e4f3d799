"""From settled groups to a batch: micro-batches of the ladder's shapes, and fixed denominators.

Legend: N sequences, S slots of all micro-batches, B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.batching.credit import Credit, credit_of
from forebay.batching.loss_mask import ActionTokens, IntArray, Member, classify_tokens, fresh_lengths
from forebay.batching.packing import Bucket, Packing, plan_packing
from forebay.batching.rows import TrainRows, make_rows, map_rows
from forebay.batching.settings import BatchingSettings
from forebay.batching.stats import BatchStats, measure
from forebay.objectives.advantages import Outcome
from forebay.objectives.denominators import FreshCounts
from forebay.objectives.value_moments import ValueMoments
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

    @property
    def turn_advantages(self) -> Sequence[npt.NDArray[np.float64]] | None:
        """Of each member, [turns] one per turn of its episode; None if they share the member's."""
        ...

    @property
    def turn_rewards(self) -> Sequence[npt.NDArray[np.float64] | None] | None:
        """Of each member, [turns] what a critic credits its tokens with; None if advantages are final."""
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
        credit: Where its rewards lie, for a critic; None if its advantages are final.
        value_moments: What the critic was right about; None before it has judged the batch, or without one.
        digest: xxh3 of arrays, shapes, denominator and credit, hexadecimal: equal digests are equal batches.
    """

    now: PolicyVersion
    group_ids: tuple[str, ...]
    micro_batches: tuple[MicroBatch, ...]
    counts: FreshCounts
    denominator: float
    stats: BatchStats
    digest: str
    credit: Credit | None = None
    value_moments: ValueMoments | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is left to train: no step is made, weights and optimizer stay as they are."""
        return self.counts.tokens == 0

    @property
    def num_tokens(self) -> int:
        """Tokens in its rows, trained or not; padding does not count."""
        return sum(int(np.count_nonzero(micro.rows.segment_ids)) for micro in self.micro_batches)


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

    Members that are masked for any reason other than a missing score stay in their group's baseline. All
    sequences of a trajectory share its advantage, or that of a turn. A sequence is packed up to its last
    fresh token, and not at all without one.

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
    members = [
        member for group, result in zip(groups, advantages, strict=True) for member in _members(group, result)
    ]
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
        credit=_credit(members, advantages, tokens, target_slots(packing, flat)),
    )


def seal_batch(
    *,
    now: PolicyVersion,
    group_ids: tuple[str, ...],
    packing: Packing,
    flat: FlatSequences,
    denominator: DenominatorFunction,
    stats: BatchStats,
    credit: Credit | None = None,
) -> Batch:
    """Lay the sequences out, and fix denominator and digest."""
    buffers = lay_out(packing, flat)
    num_sequences = int(np.count_nonzero(np.bincount(flat.target_sequences)))
    counts = FreshCounts(len(flat.target_sequences), num_sequences)
    divisor = denominator(counts)
    checksum = xxhash.xxh3_128(repr((packing.buckets, counts, divisor)).encode())
    for buffer in (array for array in buffers if array is not None):
        checksum.update(buffer.data)
        buffer.flags.writeable = False
    for array in () if credit is None else credit.arrays():
        checksum.update(np.ascontiguousarray(array).data)
    return Batch(
        now=now,
        group_ids=group_ids,
        micro_batches=_split(packing.buckets, buffers),
        counts=counts,
        denominator=divisor,
        stats=stats,
        digest=checksum.hexdigest(),
        credit=credit,
    )


def lay_out(packing: Packing, flat: FlatSequences) -> TrainRows:
    """Write sequences into flat buffers, each of all S slots.

    Args:
        packing: Where every sequence goes.
        flat: What is written.

    Returns:
        One-dimensional arrays of S slots, no annotations; padding is zero.
    """
    buffers = make_rows(lambda dtype: np.zeros(packing.num_slots, dtype))
    counting = np.arange(max(map(len, flat.tokens), default=0), dtype=np.int32)
    # One slice after another: an index per token would cost several times what is written.
    for tokens, temperature, start, segment in zip(
        flat.tokens, flat.temperatures, packing.starts, packing.segments, strict=True
    ):
        slots = slice(start, start + len(tokens))
        buffers.tokens[slots] = tokens
        buffers.segment_ids[slots] = segment
        buffers.positions[slots] = counting[: len(tokens)]
        buffers.temperature[slots] = temperature
    targets = target_slots(packing, flat)
    buffers.loss_mask[targets] = True
    buffers.advantages[targets] = flat.advantages
    buffers.behavior_logprobs[targets] = flat.behavior_logprobs
    buffers.proximal_logprobs[targets] = flat.behavior_logprobs
    buffers.staleness[targets] = flat.staleness
    return buffers


def target_slots(packing: Packing, flat: FlatSequences) -> IntArray:
    """Return [F] the slot of each fresh token, counted over all micro-batches."""
    slots: IntArray = np.array(packing.starts, np.int64)[flat.target_sequences] + flat.target_positions
    return slots


def _split(buckets: Sequence[Bucket], buffers: TrainRows) -> tuple[MicroBatch, ...]:
    micro_batches = []
    start = 0
    for bucket in buckets:
        stop = start + bucket.rows * bucket.length
        rows = map_rows(functools.partial(_cut, start=start, stop=stop, bucket=bucket), buffers)
        micro_batches.append(MicroBatch(bucket, rows))
        start = stop
    return tuple(micro_batches)


def _cut(buffer: npt.NDArray[Any], start: int, stop: int, bucket: Bucket) -> npt.NDArray[Any]:
    return buffer[start:stop].reshape(bucket)


def _members(group: TakenGroup, result: Advantages) -> list[Member]:
    by_turn: Sequence[npt.NDArray[np.float64] | None] = result.turn_advantages or [None] * len(
        group.trajectories
    )
    return list(map(Member, group.trajectories, result.advantages.tolist(), result.scored.tolist(), by_turn))


def _credit(
    members: Sequence[Member], advantages: Sequence[Advantages], tokens: ActionTokens, slots: IntArray
) -> Credit | None:
    rewards: list[npt.NDArray[np.float64] | None] = []
    for result in advantages:
        if result.turn_rewards is None:
            return None
        rewards += result.turn_rewards
    return credit_of([member.trajectory for member in members], rewards, tokens, slots)


def _fresh_sequences(members: Sequence[Member], tokens: ActionTokens) -> FlatSequences:
    """Keep what is trained: sequences with a fresh token, each up to its last one."""
    sequences: list[TokenSequence] = []
    for member in members:
        sequences += member.trajectory.sequences
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
        advantages=_of_turns(members, tokens)[fresh],
        behavior_logprobs=tokens.behavior_logprobs[fresh],
        staleness=tokens.staleness[fresh],
    )


def _of_turns(members: Sequence[Member], tokens: ActionTokens) -> npt.NDArray[np.float32]:
    """Return the advantage of every sampled token: that of its turn, or of its trajectory."""
    num_turns = np.array([len(member.trajectory.steps) for member in members], np.int64)
    first = np.repeat(np.cumsum(num_turns) - num_turns, [len(m.trajectory.sequences) for m in members])
    table = [
        np.full(num, member.advantage) if member.turn_advantages is None else member.turn_advantages
        for num, member in zip(num_turns.tolist(), members, strict=True)
    ]
    by_turn = np.concatenate([np.empty(0), *table]).astype(np.float32)
    of_token: npt.NDArray[np.float32] = by_turn[first[tokens.sequences] + tokens.turns]
    return of_token
