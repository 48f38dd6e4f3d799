"""The one place that decides which sampled tokens are trained.

A token is fresh, and trained, if the policy sampled it, its recorded logprob is that of the full distribution
it was drawn from, its trajectory has a score, no rule leaves its trajectory out, and it is not too old for
the version being differentiated. Everything else is counted by its first reason, in the order of `Reason`.

Legend: N sequences, A sampled tokens of all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.batching.settings import BatchingSettings
from forebay.errors import ConfigError
from forebay.staleness import Fork, StalenessSettings, staleness_of
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.trajectory import Sequence as TokenSequence

IntArray = npt.NDArray[np.int64]


class Reason(enum.IntEnum):
    """Why a sampled token is not trained; `FRESH` if it is."""

    FRESH = 0
    FIRST = 1  # The first token of a sequence: nothing predicts it.
    UNTRAINABLE = 2  # Greedy, or sampled from a truncated distribution.
    UNSCORED = 3  # Its trajectory has no reward.
    TRUNCATED = 4  # A limit ended its trajectory, and the settings leave such out.
    STALE = 5  # Older than max_staleness.
    TOO_LONG = 6  # Its sequence, or its place in it, is beyond max_length.


class Member(NamedTuple):
    """A trajectory as its group sees it.

    Args:
        trajectory: The record.
        advantage: How much better it did than expected.
        scored: Whether it has a reward; if not, it is not trained.
        turn_advantages: [turns] the same of each of its turns; None if they share its own.
    """

    trajectory: Trajectory
    advantage: float
    scored: bool
    turn_advantages: npt.NDArray[np.float64] | None = None


class ActionTokens(NamedTuple):
    """Every sampled token of a batch, sequence by sequence.

    Args:
        sequences: [A] the sequence that each lies in, counted over all members.
        positions: [A] its place in that sequence.
        turns: [A] the step of the episode that sampled it.
        staleness: [A] versions between its sampling and `now`.
        kv_staleness: [A] the same for the oldest part of the cache that it attended to.
        behavior_logprobs: [A] float32, nats.
        reasons: [A] int8, values of `Reason`.
    """

    sequences: IntArray
    positions: IntArray
    turns: IntArray
    staleness: IntArray
    kv_staleness: IntArray
    behavior_logprobs: npt.NDArray[np.float32]
    reasons: npt.NDArray[np.int8]

    @property
    def fresh(self) -> npt.NDArray[np.bool_]:
        """[A] true at the tokens that are trained."""
        fresh: npt.NDArray[np.bool_] = self.reasons == Reason.FRESH
        return fresh


def classify_tokens(
    members: Sequence[Member],
    now: PolicyVersion,
    forks: Sequence[Fork],
    staleness: StalenessSettings,
    settings: BatchingSettings,
) -> ActionTokens:
    """Find the sampled tokens of all members and decide for each whether it is trained.

    Under `mask` a token is too old by itself. Under `wait` and `drop` one such token rejects its whole
    trajectory: there it is an exception, as groups are taken before they grow too old.

    A sequence is too long if its last fresh token lies beyond `max_length`: what follows that token is not
    packed.

    Args:
        members: Trajectories with their advantages.
        now: The version being differentiated.
        forks: Where each incarnation after the first began.
        staleness: The staleness rule.
        settings: `mask_truncated`, `max_length` and `oversize`.

    Returns:
        The tokens, in the order of members, sequences and positions.

    Raises:
        StalenessError: A token claims a version that the learner has not made.
        ConfigError: A sequence is too long and `oversize` is "error".
    """
    sequences = [sequence for member in members for sequence in member.trajectory.sequences]
    owners = _repeat(np.arange(len(members)), [len(member.trajectory.sequences) for member in members])
    tokens = _action_tokens(sequences, now, forks)
    owner_of_token = owners[tokens.sequences]
    stale = tokens.staleness > staleness.max_staleness
    if staleness.on_stale != "mask":
        stale = _whole_members(stale, owner_of_token, len(members))
    reasons = tokens.reasons
    # Each line overrules those before it.
    reasons[stale] = Reason.STALE
    of_member = np.array([_member_reason(member, settings.mask_truncated) for member in members], np.int8)
    np.copyto(reasons, of_member[owner_of_token], where=of_member[owner_of_token] != Reason.FRESH)
    untrainable = np.array([not sequence.sampling.trainable for sequence in sequences], np.bool_)
    reasons[untrainable[tokens.sequences]] = Reason.UNTRAINABLE
    reasons[tokens.positions == 0] = Reason.FIRST
    _cut_oversize(tokens, members, owners, settings)
    return tokens


def fresh_lengths(tokens: ActionTokens, num_sequences: int) -> IntArray:
    """Return [N] how long each sequence is up to and including its last fresh token; 0 if it has none."""
    lengths = np.zeros(num_sequences, np.int64)
    fresh = tokens.fresh
    np.maximum.at(lengths, tokens.sequences[fresh], tokens.positions[fresh] + 1)
    return lengths


def _cut_oversize(
    tokens: ActionTokens, members: Sequence[Member], owners: IntArray, settings: BatchingSettings
) -> None:
    lengths = fresh_lengths(tokens, len(owners))
    too_long = np.flatnonzero(lengths > settings.max_length)
    if not len(too_long):
        return
    if settings.oversize == "error":
        owner = members[owners[too_long[0]]].trajectory
        raise ConfigError(
            f"trajectory {owner.trajectory_id} has a sequence longer than batching.max_length",
            got=f"{lengths[too_long[0]]} tokens",
            limit=settings.max_length,
            remedy='Raise batching.max_length, or set batching.oversize to "drop" or "truncate".',
        )
    beyond = np.isin(tokens.sequences, too_long) & tokens.fresh
    if settings.oversize == "truncate":
        beyond &= tokens.positions >= settings.max_length
    tokens.reasons[beyond] = Reason.TOO_LONG


def _action_tokens(
    sequences: Sequence[TokenSequence], now: PolicyVersion, forks: Sequence[Fork]
) -> ActionTokens:
    """List every sampled token as if it were fresh."""
    rows = [(span.start, span.stop, span.step) for sequence in sequences for span in sequence.action_spans]
    starts, stops, steps = np.array(rows, np.int64).reshape(len(rows), 3).T
    sizes = stops - starts
    sequence_of_span = _repeat(np.arange(len(sequences)), [len(s.action_spans) for s in sequences])
    # Counts up within each span: the place in the run of all tokens, less where its span begins in that run.
    positions = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    logprobs = [sequence.behavior_logprobs for sequence in sequences]
    runs = [span for sequence in sequences for span in sequence.version_spans]
    run_sizes = [span.num_tokens for span in runs]
    return ActionTokens(
        sequences=np.repeat(sequence_of_span, sizes),
        positions=positions,
        turns=np.repeat(steps, sizes),
        staleness=_repeat(_staleness([run.version for run in runs], now, forks), run_sizes),
        kv_staleness=_repeat(_staleness([run.kv_version for run in runs], now, forks), run_sizes),
        behavior_logprobs=np.concatenate([np.empty(0, np.float32), *logprobs]),
        reasons=np.full(len(positions), Reason.FRESH, np.int8),
    )


def _member_reason(member: Member, mask_truncated: bool) -> Reason:
    if not member.scored:
        return Reason.UNSCORED
    return Reason.TRUNCATED if mask_truncated and member.trajectory.truncated else Reason.FRESH


def _staleness(versions: Sequence[PolicyVersion], now: PolicyVersion, forks: Sequence[Fork]) -> IntArray:
    of_version = {version: staleness_of(version, now, forks) for version in set(versions)}
    return np.array([of_version[version] for version in versions], np.int64)


def _whole_members(
    flags: npt.NDArray[np.bool_], owner_of_token: IntArray, num_members: int
) -> npt.NDArray[np.bool_]:
    """Flag every token of a member that has a flagged one."""
    flagged: npt.NDArray[np.bool_] = np.bincount(owner_of_token[flags], minlength=num_members) > 0
    return flagged[owner_of_token]


def _repeat(values: IntArray, times: list[int]) -> IntArray:
    return np.repeat(values, np.array(times, np.int64))
