"""Where the rewards of a batch's episodes lie among its trained tokens: what a critic starts from.

Legend: N episodes with a trained token, F trained tokens of all of them, S slots of all micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.batching.loss_mask import ActionTokens, IntArray
from forebay.trajectory import Trajectory

FloatArray = npt.NDArray[np.float64]


class Credit(NamedTuple):
    """The trained tokens of a batch, episode by episode and within each in the order of sampling.

    What the environment says, and tokens that are not trained, are passed over: after a token comes the next
    trained one of the episode, in whatever sequence. A reward that came in between counts for the token
    before it.

    Args:
        slots: [F] where each token lies, counted over all micro-batches.
        lengths: [N] tokens of each episode, at least 1.
        rewards: [F] float64, what was gained from this token to the next; they add up to what the episode
            gained from its first trained token on.
        cut_off: [N] bool, a limit ended the episode just after its last trained token.
    """

    slots: IntArray
    lengths: IntArray
    rewards: FloatArray
    cut_off: npt.NDArray[np.bool_]

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return the arrays, for a checksum."""
        return (self.slots, self.lengths, self.rewards, self.cut_off)


def credit_of(
    trajectories: Sequence[Trajectory],
    turn_rewards: Sequence[FloatArray | None],
    tokens: ActionTokens,
    slots: IntArray,
) -> Credit:
    """Find the trained tokens of every episode and what each of them gained.

    Args:
        trajectories: All members of the batch, in order.
        turn_rewards: Of each, [turns] what each turn gained; None for one without a score.
        tokens: All sampled tokens of all of them, classified.
        slots: [F] where each fresh one lies, in their order.
    """
    owners = np.repeat(
        np.arange(len(trajectories)), np.array([len(t.sequences) for t in trajectories], np.int64)
    )
    fresh = tokens.fresh
    owner_of_fresh, turn_of_fresh = owners[tokens.sequences[fresh]], tokens.turns[fresh]
    # Stable: within a turn, tokens stay in the order of their sequence.
    order = np.lexsort((turn_of_fresh, owner_of_fresh))
    owner_of_fresh, turn_of_fresh = owner_of_fresh[order], turn_of_fresh[order]
    episodes, lengths = np.unique(owner_of_fresh, return_counts=True)
    ends = np.cumsum(lengths)
    rewards = np.zeros(len(order), np.float64)
    for episode, start, end in zip(episodes.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True):
        gained = turn_rewards[episode]
        assert gained is not None  # without a score, no token is fresh
        rewards[start:end] = _laid_out(gained, turn_of_fresh[start:end])
    last_sampled = _last_sampled(owners[tokens.sequences], tokens, len(trajectories))
    last_fresh = np.flatnonzero(fresh)[order][ends - 1]
    truncated = np.array([t.truncated for t in trajectories], np.bool_)
    return Credit(
        slots=slots[order],
        lengths=lengths,
        rewards=rewards,
        cut_off=truncated[episodes] & (last_sampled[episodes] == last_fresh),
    )


def _laid_out(gained: FloatArray, turns: IntArray) -> FloatArray:
    """Put each turn's reward on the last token up to its end; what came before the first token is gone."""
    rewards = np.zeros(len(turns), np.float64)
    places = np.searchsorted(turns, np.arange(len(gained)), side="right") - 1
    np.add.at(rewards, places[places >= 0], gained[places >= 0])
    return rewards


def _last_sampled(owners: IntArray, tokens: ActionTokens, num_episodes: int) -> IntArray:
    """Return the index of the token that each episode sampled last; -1 if it sampled none."""
    order = np.lexsort((tokens.turns, owners))
    last: IntArray = np.full(num_episodes, -1, np.int64)
    last[owners[order]] = order  # of several assignments, the last one stays
    return last
