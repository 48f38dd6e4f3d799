"""What the scripts refuse, in words: a script answers with a code and numbers, this makes the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from forebay.errors import ForebayError, StoreError
from forebay.store import refusals
from forebay.store.address import Address
from forebay.store.redis.faults import damaged


def refusal(address: Address, answer: Sequence[Any]) -> ForebayError:
    """Return the error of a script that answered with a code.

    Args:
        address: The server's.
        answer: The code, and what belongs to it.
    """
    code, *facts = (part.decode() if isinstance(part, bytes) else part for part in answer)
    if code == "gone":
        return StoreError(
            f"the store's server {address} has no record of this run",
            remedy="The server was emptied, or lost its files. Restore them, or start a new run.",
        )
    if code == "damaged":
        return damaged(str(facts[0]), address)
    return _REFUSALS[str(code)](*facts)


def _went_back(recorded: int, known: int) -> ForebayError:
    return StoreError(
        "the store's server went back in time: it has lost a batch that it had acknowledged",
        got=f"recorded up to step {recorded}",
        limit=f"step {known}",
        remedy=f"Nothing is trained twice: resume from a checkpoint of step {recorded} or earlier. "
        "appendfsync always, or store.min_replicas before a fail-over, would have kept it.",
    )


def _ahead(step: int, recorded: int) -> ForebayError:
    return StoreError(
        "the checkpoint is newer than the store's journal: the server has lost batches it had acknowledged",
        got=f"step {step}",
        limit=f"recorded up to step {recorded}",
        remedy=f"Set aside the checkpoints after step {recorded}, and resume: going on from step {step} "
        "would train the lost batches' trajectories twice.",
    )


_REFUSALS: Final[dict[str, Callable[..., ForebayError]]] = {
    "fenced": refusals.fenced,
    "never_began": refusals.never_began,
    "not_staged": lambda: StoreError(
        "the store's server no longer has the frame that was sent", remedy="The put can be made again."
    ),
    "went_back": _went_back,
    "ahead": _ahead,
    "hole": refusals.hole,
    "too_large_alone": refusals.too_large_alone,
    "foreign": refusals.foreign,
    "retained_full": refusals.retained_full,
    "no_group": refusals.no_group,
    "old_name": refusals.old_name,
    "not_taken": refusals.not_taken,
    "other_batch": refusals.other_batch,
    "out_of_order": refusals.out_of_order,
    "past": refusals.past,
    "not_replayed": refusals.not_replayed,
    "forgotten": refusals.forgotten,
    "waits_for_replay": refusals.waits_for_replay,
    "not_remade": refusals.not_remade,
}
