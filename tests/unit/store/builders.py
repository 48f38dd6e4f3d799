"""Small records for the tests of the store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forebay.staleness import Choice, OutstandingGroup
from forebay.store import Chooser, GroupSpec, JournalEntry, Slot
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
)
from forebay.trajectory import Sequence as Branch

RUN = "run-1"
FIRST = PolicyVersion(0, 0)


def make_spec(
    serial: int,
    *,
    group_id: str | None = None,
    group_size: int = 2,
    min_group_size: int = 1,
    environment: str = "calculator",
    min_version: PolicyVersion = FIRST,
    deadline_s: float = 60.0,
    member_bytes: int = 1000,
    max_attempts: int = 3,
) -> GroupSpec:
    return GroupSpec(
        group_id=group_id or f"g{serial}",
        serial=serial,
        task=Task(task_id=f"task-{serial}", environment=environment, payload={"question": f"{serial} + 1"}),
        group_size=group_size,
        min_group_size=min_group_size,
        min_version=min_version,
        deadline_s=deadline_s,
        member_bytes=member_bytes,
        max_attempts=max_attempts,
    )


def make_trajectory(
    slot: Slot,
    *,
    name: str | None = None,
    version: PolicyVersion | None = FIRST,
    num_tokens: int = 8,
    run_id: str = RUN,
    finish: str = "terminated",
) -> Trajectory:
    """A trajectory for a slot: half its tokens are actions, by one version; None for no action at all."""
    num_actions = 0 if version is None else num_tokens // 2
    branch = Branch(
        tokens=np.arange(num_tokens, dtype=np.int32),
        action_spans=(ActionSpan(num_tokens - num_actions, num_tokens, 0),) if num_actions else (),
        behavior_logprobs=np.full(num_actions, -0.5, np.float32),
        version_spans=(VersionSpan(num_actions, version, version),) if num_actions else (),
        sampling=Sampling(),
    )
    return Trajectory(
        trajectory_id=name or f"{slot.group_id}.{slot.member}.{slot.attempt}",
        run_id=run_id,
        incarnation=slot.incarnation,
        group_id=slot.group_id,
        group_size=slot.group_size,
        member=slot.member,
        attempt=slot.attempt,
        task_id=slot.task.task_id,
        environment=slot.task.environment,
        sequences=(branch,),
        steps=(StepRecord(1.0, "stop", 0.0, 0.1, 0.2),),
        reward=1.0,
        terminated=finish == "terminated",
        truncated=finish != "terminated",
        finish=finish,
        started_s=0.0,
        finished_s=1.0,
    )


def oldest_first(num_groups: int) -> Chooser:
    """Choose the oldest settled groups, once there are enough."""

    def choose(groups: Sequence[OutstandingGroup]) -> Choice:
        settled = [group.group_id for group in groups if group.settled]
        enough = len(settled) >= num_groups
        return Choice(
            take=tuple(settled[:num_groups]) if enough else (), missing=max(0, num_groups - len(settled))
        )

    return choose


def make_entry(
    step: int, group_ids: Sequence[str], *, incarnation: int = 0, digest: str = ""
) -> JournalEntry:
    return JournalEntry(
        step=step,
        now=PolicyVersion(incarnation, step - 1),
        forks=(),
        group_ids=tuple(group_ids),
        digest=digest or f"digest-{step}",
        packing=b"plan",
    )
