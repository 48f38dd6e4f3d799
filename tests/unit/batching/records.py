"""Small trajectories and groups, written out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from forebay.batching.batch import Batch, build_batch
from forebay.batching.ladder import build_ladder
from forebay.batching.rows import TrainRows
from forebay.batching.settings import BatchingSettings
from forebay.objectives.advantages import group_mean
from forebay.objectives.denominators import FreshCounts
from forebay.staleness import StalenessSettings
from forebay.store.protocol import GroupSpec, TakenGroup
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    Sequence,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
)

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "expected.json").read_text())
NOW = PolicyVersion(0, 10)


def v(version: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation, version)


def sequence(
    tokens: Iterable[int],
    mask: Iterable[int],
    *,
    logprobs: Iterable[float] | None = None,
    versions: Iterable[int] | None = None,
    sampling: Sampling | None = None,
) -> Sequence:
    """Write a sequence; each run of ones in `mask` is a turn, `versions` has one number per action token."""
    ids, flags = np.array(list(tokens), np.int32), list(mask)
    edges = np.flatnonzero(np.diff([0, *flags, 0]))
    spans = [ActionSpan(int(a), int(b), i) for i, (a, b) in enumerate(edges.reshape(-1, 2))]
    num_actions = sum(flags)
    of_token = [10] * num_actions if versions is None else list(versions)
    runs: list[VersionSpan] = []
    for version in of_token:
        if runs and runs[-1].version == v(version):
            runs[-1] = VersionSpan(runs[-1].num_tokens + 1, v(version), v(version))
        else:
            runs.append(VersionSpan(1, v(version), v(version)))
    values = [-0.5] * num_actions if logprobs is None else list(logprobs)
    return Sequence(
        tokens=ids,
        action_spans=tuple(spans),
        behavior_logprobs=np.array(values, np.float32),
        version_spans=tuple(runs),
        sampling=sampling or Sampling(),
    )


def answer(length: int, prompt: int = 1, **options: Any) -> Sequence:
    """Write a prompt and an answer, `length` tokens together."""
    return sequence(range(100, 100 + length), [0] * prompt + [1] * (length - prompt), **options)


def trajectory(
    *sequences: Sequence, reward: float | None = 1.0, name: str = "t", **changes: Any
) -> Trajectory:
    num_steps = max((span.step + 1 for s in sequences for span in s.action_spans), default=0)
    fields: dict[str, Any] = {
        "trajectory_id": name, "run_id": "r", "incarnation": 0, "group_id": "g", "group_size": 64,
        "member": 0, "attempt": 0, "task_id": "k", "environment": "e", "sequences": sequences,
        "steps": (StepRecord(None, "stop", 0.0, 0.0, 0.0),) * num_steps, "reward": reward,
        "terminated": True, "truncated": False, "finish": "terminated", "started_s": 0.0, "finished_s": 1.0,
    }  # fmt: skip
    return Trajectory(**(fields | changes))


def group(*trajectories: Trajectory, group_id: str = "g", task_id: str = "k") -> TakenGroup:
    spec = GroupSpec(
        group_id=group_id,
        serial=0,
        task=Task(task_id=task_id, environment="e", payload={}),
        group_size=max(len(trajectories), 2),
        min_group_size=2,
        min_version=v(0),
        deadline_s=60.0,
        member_bytes=1,
    )
    return TakenGroup(spec=spec, trajectories=trajectories)


def token_mean(counts: FreshCounts) -> float:
    return float(max(counts.tokens, 1))


def batch_of(
    *groups: TakenGroup,
    now: PolicyVersion = NOW,
    on_stale: str = "mask",
    max_staleness: int = 8,
    forks: tuple[Any, ...] = (),
    **settings: Any,
) -> Batch:
    batching = BatchingSettings(**({"max_length": 32, "rows": 2, "max_programs": 4} | settings))
    return build_batch(
        groups,
        now=now,
        forks=forks,
        staleness=StalenessSettings.model_validate({"on_stale": on_stale, "max_staleness": max_staleness}),
        settings=batching,
        ladder=build_ladder(batching),
        advantages=[group_mean([t.reward for t in one.trajectories]) for one in groups],
        denominator=token_mean,
    )


def flat(batch: Batch) -> TrainRows:
    """Return all slots of a batch, one after another."""
    columns = zip(*(micro.rows for micro in batch.micro_batches), strict=True)
    return TrainRows(
        *(
            None if column[0] is None else np.concatenate([array.ravel() for array in column])
            for column in columns
        )
    )


def trained_tokens(batch: Batch) -> list[int]:
    rows = flat(batch)
    return rows.tokens[rows.loss_mask].tolist()
