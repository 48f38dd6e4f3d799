"""Leave-one-out over the siblings that have finished, whatever group of the store each came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.errors import RecordError
from forebay.objectives.advantages import BatchAdvantages, GroupAdvantages, Outcome


def among_siblings(
    estimate: BatchAdvantages, names: Sequence[str], families: Sequence[Mapping[str, Outcome]]
) -> BatchAdvantages:
    """Return the function of a batch of single episodes that compares each with its finished siblings.

    With the episodes F of a task that had finished when the batch was taken, `A_i = r_i - mean of r_j over
    the j in F other than i`. Which they are depends on how long episode i took: where its length tells
    something about the rewards, the expectation of this gradient is not the policy gradient.

    Args:
        estimate: Compares the members of a group; `leave_one_out` of each.
        names: What each episode of the batch is called, in order.
        families: Per task, the outcome of every finished episode by its name, those of the batch among them.

    Returns:
        A function from the outcomes of the batch, one a group, to the advantages of each. `zero_spread` and
        `reward_mean` are those of all that the episode is compared with, itself included.

    Example:
        >>> from forebay.objectives.advantages import by_group, leave_one_out
        >>> family = {"a": Outcome(1.0, 5), "b": Outcome(0.0, 7), "c": Outcome(0.0, 9)}
        >>> estimate = among_siblings(by_group(leave_one_out), ["c", "a"], [family])
        >>> [group.advantages.tolist() for group in estimate([[family["c"]], [family["a"]]])]
        [[-0.5], [1.0]]

    References:
        Ahmadian et al. 2024, Back to Basics (RLOO), equation 8, over fewer than all members,
        https://arxiv.org/abs/2402.14740.
    """
    places = {
        name: (row, column) for row, family in enumerate(families) for column, name in enumerate(family)
    }
    if missing := [name for name in names if name not in places]:
        raise RecordError("no_family", "an episode is compared with its family, itself included", got=missing)

    def batch_advantages(groups: Sequence[Sequence[Outcome]]) -> list[GroupAdvantages]:
        if [len(group) for group in groups] != [1] * len(names):
            raise RecordError(
                "shape_mismatch",
                "a batch of single episodes has one member in each group",
                got=[len(group) for group in groups],
                limit=[1] * len(names),
            )
        compared = estimate([list(family.values()) for family in families])
        return [_member(compared[row], column) for row, column in (places[name] for name in names)]

    return batch_advantages


def _member(group: GroupAdvantages, index: int) -> GroupAdvantages:
    return GroupAdvantages(
        advantages=group.advantages[index : index + 1],
        scored=group.scored[index : index + 1],
        zero_spread=group.zero_spread,
        reward_mean=group.reward_mean,
    )
