"""What is in a batch, what was left out of it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.batching.loss_mask import ActionTokens, IntArray, Member, Reason
from forebay.batching.packing import Packing


class BatchStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over one batch.

    Args:
        trajectories: Members of its groups.
        branches: Sequences beyond the first of each trajectory.
        unscored: Trajectories without a reward.
        truncated: Trajectories that a limit ended.
        discarded: Trajectories that sampled tokens of which none is trained.
        zero_spread_groups: Groups whose scores are all equal: their advantages are 0.
        reward_mean: Mean over scored trajectories, each counting once; None if there is none.
        too_long: Trajectories with a sequence that was dropped or cut for its length, by name.
        masked_tokens: Sampled tokens that are not trained, by reason.
        action_tokens_by_turn: Sampled tokens of each turn of an episode.
        fresh_tokens_by_turn: Those of them that are trained.
        fresh_tokens_by_trajectory: Trained tokens of each member, in the order of groups and members; of
            demonstrations, only those that are packed.
        staleness_histogram: Trained tokens by staleness, from 0.
        kv_staleness_max: Oldest cache that a trained token attended to, in versions.
        real_tokens: Slots that hold a token.
        padded_tokens: Slots that hold none.
        micro_batches: Calls of a compiled program.
    """

    trajectories: int
    branches: int
    unscored: int
    truncated: int
    discarded: int
    zero_spread_groups: int
    reward_mean: float | None
    too_long: tuple[str, ...]
    masked_tokens: dict[str, int]
    action_tokens_by_turn: tuple[int, ...]
    fresh_tokens_by_turn: tuple[int, ...]
    fresh_tokens_by_trajectory: tuple[int, ...]
    staleness_histogram: tuple[int, ...]
    kv_staleness_max: int
    real_tokens: int
    padded_tokens: int
    micro_batches: int

    @property
    def fill(self) -> float:
        """Real tokens divided by slots; 1 if there are no slots."""
        slots = self.real_tokens + self.padded_tokens
        return self.real_tokens / slots if slots else 1.0

    @property
    def staleness_max(self) -> int:
        """Oldest trained token, in versions; 0 if nothing is trained."""
        return max(len(self.staleness_histogram) - 1, 0)

    @property
    def staleness_mean(self) -> float:
        """Mean over trained tokens, in versions; 0 if nothing is trained."""
        total = sum(self.staleness_histogram)
        return sum(age * count for age, count in enumerate(self.staleness_histogram)) / max(total, 1)


def measure(
    members: Sequence[Member],
    tokens: ActionTokens,
    num_real_tokens: int,
    packing: Packing,
    zero_spread_groups: int,
) -> BatchStats:
    """Count what a batch is made of.

    Args:
        members: All trajectories of its groups.
        tokens: All sampled tokens, classified.
        num_real_tokens: Tokens that are packed.
        packing: Where they are packed.
        zero_spread_groups: Groups whose scores are all equal.
    """
    num_sequences = [len(member.trajectory.sequences) for member in members]
    owners = np.repeat(np.arange(len(members)), np.array(num_sequences, np.int64))
    owner_of_token = owners[tokens.sequences]
    fresh = tokens.fresh
    sampled = _flags(owner_of_token, len(members))
    trained = np.bincount(owner_of_token[fresh], minlength=len(members))
    too_long = _flags(owner_of_token[tokens.reasons == Reason.TOO_LONG], len(members))
    rewards = [m.trajectory.reward for m in members if m.scored and m.trajectory.reward is not None]
    masked = np.bincount(tokens.reasons, minlength=len(Reason))
    num_turns = int(tokens.turns.max()) + 1 if len(tokens.turns) else 0
    return BatchStats(
        trajectories=len(members),
        branches=sum(max(number - 1, 0) for number in num_sequences),
        unscored=sum(not member.scored for member in members),
        truncated=sum(member.trajectory.truncated for member in members),
        discarded=int(np.sum(sampled & (trained == 0))),
        zero_spread_groups=zero_spread_groups,
        reward_mean=sum(rewards) / len(rewards) if rewards else None,
        too_long=tuple(members[i].trajectory.trajectory_id for i in np.flatnonzero(too_long).tolist()),
        masked_tokens={
            reason.name.lower(): int(masked[reason])
            for reason in Reason
            if reason is not Reason.FRESH and masked[reason]
        },
        action_tokens_by_turn=_counts(tokens.turns, num_turns),
        fresh_tokens_by_turn=_counts(tokens.turns[fresh], num_turns),
        fresh_tokens_by_trajectory=tuple(trained.tolist()),
        staleness_histogram=_counts(tokens.staleness[fresh], 0),
        kv_staleness_max=int(tokens.kv_staleness[fresh].max(initial=0)),
        real_tokens=num_real_tokens,
        padded_tokens=packing.num_slots - num_real_tokens,
        micro_batches=len(packing.buckets),
    )


def _flags(indices: IntArray, size: int) -> npt.NDArray[np.bool_]:
    flags = np.zeros(size, np.bool_)
    flags[indices] = True
    return flags


def _counts(values: npt.NDArray[Any], size: int) -> tuple[int, ...]:
    return tuple(np.bincount(values, minlength=size).tolist())
