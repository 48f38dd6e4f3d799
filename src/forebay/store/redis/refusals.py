"""What the scripts refuse, in words: a script answers with a code and numbers, this makes the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from forebay.errors import FencedError, ForebayError, RefusedError, StoreError
from forebay.store.address import Address


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
    return _REFUSALS[str(code)](*facts)


def _fenced(got: int, newest: int) -> ForebayError:
    return FencedError(
        "a newer learner has taken over",
        got=f"incarnation {got}",
        limit=f"incarnation {newest}",
        remedy="Stop this learner.",
    )


def _never_began(got: int, newest: int) -> ForebayError:
    return StoreError("this incarnation never began", got=got, limit=newest, remedy="Call rewind first.")


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


def _hole(group_id: str, serial: int, next_serial: int) -> ForebayError:
    return StoreError(
        f"group {group_id} would leave a hole in the stream of tasks",
        got=f"serial {serial}",
        limit=f"serial {next_serial}",
        remedy="Dispatch from StoreStats.next_serial on, in order.",
    )


def _not_taken(group_id: str, state: str) -> ForebayError:
    return StoreError(f"group {group_id} is not in the learner's hands", got=state, limit="taken")


def _other_batch(step: int, digest: str, known: str) -> ForebayError:
    return StoreError(
        f"step {step} is in the journal with another batch",
        got=f"digest {digest}",
        limit=f"digest {known}",
        remedy="Replay the journal's batches as they are, or call truncate_journal.",
    )


def _out_of_order(step: int, following: int) -> ForebayError:
    return StoreError("replay out of order", got=f"step {step}", limit=f"step {following}")


def _past(step: int, recorded: int) -> ForebayError:
    return StoreError("step is already past", got=step, limit=f"> {recorded}")


def _not_replayed(step: int, replayed: int, recorded: int) -> ForebayError:
    return StoreError(
        "the journal still holds steps to be replayed",
        got=f"step {step}",
        limit=f"steps after {replayed} up to {recorded}",
        remedy="Replay them in order, or call truncate_journal.",
    )


def _forgotten(step: int, committed: int) -> ForebayError:
    return StoreError(
        "batches after this step are already forgotten",
        got=f"step {step}",
        limit=f"step >= {committed}",
        remedy=f"Resume from a checkpoint of step {committed} or later.",
    )


def _waits_for_replay(step: int, replayed: int) -> ForebayError:
    return StoreError("a step that waits for its replay cannot be forgotten", got=step, limit=replayed)


def _not_remade(version: int, replayed: int) -> ForebayError:
    return StoreError("the fork cannot pass what was re-made", got=version, limit=replayed)


def _too_large_alone(group_id: str, group_size: int, member_bytes: int, limit: int) -> ForebayError:
    return StoreError(
        f"group {group_id} alone exceeds the store",
        got=f"{group_size} members x {member_bytes} bytes = {group_size * member_bytes}",
        limit=f"store.capacity_bytes={limit}",
        remedy="Raise store.capacity_bytes or lower the reservation.",
    )


def _foreign(group_id: str, member: int, claimed_size: int, group_size: int) -> ForebayError:
    return RefusedError(
        f"slot does not belong to group {group_id}",
        got=f"member {member} of {claimed_size}",
        limit=f"group_size {group_size}",
    )


def _retained_full(step: int, retained: int, needed: int, limit: int) -> ForebayError:
    return StoreError(
        f"recording step {step} would exceed the bytes kept for replay",
        got=f"{retained} retained + {needed} = {retained + needed}",
        limit=f"store.retained_capacity_bytes={limit}",
        remedy="Checkpoint more often, or raise store.retained_capacity_bytes.",
    )


_REFUSALS: Final[dict[str, Callable[..., ForebayError]]] = {
    "fenced": _fenced,
    "never_began": _never_began,
    "not_staged": lambda: StoreError(
        "the store's server no longer has the frame that was sent", remedy="The put can be made again."
    ),
    "went_back": _went_back,
    "ahead": _ahead,
    "hole": _hole,
    "too_large_alone": _too_large_alone,
    "foreign": _foreign,
    "retained_full": _retained_full,
    "no_group": lambda group_id: StoreError("the store holds no such group", got=group_id),
    "old_name": lambda group_id: StoreError("a replacement needs a new name", got=group_id),
    "not_taken": _not_taken,
    "other_batch": _other_batch,
    "out_of_order": _out_of_order,
    "past": _past,
    "not_replayed": _not_replayed,
    "forgotten": _forgotten,
    "waits_for_replay": _waits_for_replay,
    "not_remade": _not_remade,
}
