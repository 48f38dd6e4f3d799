"""What every engine refuses, in words: the rules in Python and the scripts on a server say the same."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import FencedError, RefusedError, StoreError
from forebay.trajectory import PolicyVersion


def no_group(group_id: str) -> StoreError:
    """The store holds no such group."""
    return StoreError("the store holds no such group", got=group_id)


def old_name(group_id: str) -> StoreError:
    """A replacement has the name of a group that is there."""
    return StoreError("a replacement needs a new name", got=group_id)


def fenced(got: int, newest: int) -> FencedError:
    """A newer learner has taken over."""
    return FencedError(
        "a newer learner has taken over",
        got=f"incarnation {got}",
        limit=f"incarnation {newest}",
        remedy="Stop this learner.",
    )


def never_began(got: int, newest: int) -> StoreError:
    """This incarnation never called rewind."""
    return StoreError("this incarnation never began", got=got, limit=newest, remedy="Call rewind first.")


def hole(group_id: str, serial: int, next_serial: int) -> StoreError:
    """A dispatch would leave serials out."""
    return StoreError(
        f"group {group_id} would leave a hole in the stream of tasks",
        got=f"serial {serial}",
        limit=f"serial {next_serial}",
        remedy="Dispatch from StoreStats.next_serial on, in order.",
    )


def not_taken(group_id: str, state: str) -> StoreError:
    """A group is not in the learner's hands."""
    return StoreError(f"group {group_id} is not in the learner's hands", got=state, limit="taken")


def other_batch(step: int, digest: str, known: str) -> StoreError:
    """A journaled step is recorded again with another batch."""
    return StoreError(
        f"step {step} is in the journal with another batch",
        got=f"digest {digest}",
        limit=f"digest {known}",
        remedy="Replay the journal's batches as they are, or call truncate_journal.",
    )


def out_of_order(step: int, following: int) -> StoreError:
    """A replay skips a journaled step."""
    return StoreError("replay out of order", got=f"step {step}", limit=f"step {following}")


def past(step: int, recorded: int) -> StoreError:
    """A step is recorded that is neither new nor journaled."""
    return StoreError("step is already past", got=step, limit=f"> {recorded}")


def not_replayed(step: int, replayed: int, recorded: int) -> StoreError:
    """A new step is recorded before the journal is replayed."""
    return StoreError(
        "the journal still holds steps to be replayed",
        got=f"step {step}",
        limit=f"steps after {replayed} up to {recorded}",
        remedy="Replay them in order, or call truncate_journal.",
    )


def forgotten(step: int, committed: int) -> StoreError:
    """What lies after a step is forgotten."""
    return StoreError(
        "batches after this step are already forgotten",
        got=f"step {step}",
        limit=f"step >= {committed}",
        remedy=f"Resume from a checkpoint of step {committed} or later.",
    )


def waits_for_replay(step: int, replayed: int) -> StoreError:
    """A step cannot be forgotten before its replay."""
    return StoreError("a step that waits for its replay cannot be forgotten", got=step, limit=replayed)


def not_remade(version: int, replayed: int) -> StoreError:
    """A fork cannot move beyond what was made again."""
    return StoreError("the fork cannot pass what was re-made", got=version, limit=replayed)


def too_large_alone(group_id: str, group_size: int, member_bytes: int, limit: int) -> StoreError:
    """A group would never fit."""
    return StoreError(
        f"group {group_id} alone exceeds the store",
        got=f"{group_size} members x {member_bytes} bytes = {group_size * member_bytes}",
        limit=f"store.capacity_bytes={limit}",
        remedy="Raise store.capacity_bytes or lower the reservation.",
    )


def foreign(group_id: str, member: int, claimed_size: int, group_size: int) -> RefusedError:
    """A slot is not one of its group."""
    return RefusedError(
        f"slot does not belong to group {group_id}",
        got=f"member {member} of {claimed_size}",
        limit=f"group_size {group_size}",
    )


def retained_full(step: int, retained: int, needed: int, limit: int) -> StoreError:
    """Too much is kept for replay."""
    return StoreError(
        f"recording step {step} would exceed the bytes kept for replay",
        got=f"{retained} retained + {needed} = {retained + needed}",
        limit=f"store.retained_capacity_bytes={limit}",
        remedy="Checkpoint more often, or raise store.retained_capacity_bytes.",
    )


def no_batch(group_ids: Sequence[str]) -> StoreError:
    """A batch has no groups, or one of them twice."""
    return StoreError("a batch needs groups, each of them once", got=group_ids)


def others_version(version: PolicyVersion, incarnation: int) -> StoreError:
    """A learner publishes what another incarnation made."""
    return StoreError(
        "a learner publishes versions of its own incarnation only", got=tuple(version), limit=incarnation
    )
