"""Rows: a stored trajectory as plain values, one row each, for files that other programs read; and back.

The columns are numbered by `SCHEMA_VERSION`: it changes when a column goes away or changes its meaning, not
when one is added. Tokens, spans and logprobs are all there, so that a row makes the same trajectory again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from forebay.errors import RecordError
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

SCHEMA_VERSION: Final = 1
SCHEMA: Final = "forebay.trajectory"

_STEP_FIELDS: Final = StepRecord.__struct_fields__
_SAMPLING_FIELDS: Final = Sampling.__struct_fields__
_NESTED: Final = ("sequences", "steps")
# Columns that rows of the same schema may lack, being older.
_ADDED: Final = frozenset(("reset_s",))
_PLAIN: Final = tuple(name for name in Trajectory.__struct_fields__ if name not in _NESTED)


def to_row(trajectory: Trajectory, task: Task, state: str, step: int | None) -> dict[str, Any]:
    """Return a trajectory as a row of plain values.

    Args:
        trajectory: What is stored.
        task: The problem of its group.
        state: State of its group.
        step: The version that the batch made in which it was trained; None if it was not.

    Returns:
        Its columns, in their order; see docs/reference/store.md. Floats of 32 bits are exact as 64.
    """
    oldest = trajectory.oldest_version
    return {
        "schema_version": SCHEMA_VERSION,
        "state": state,
        "step": step,
        "oldest_incarnation": None if oldest is None else oldest.incarnation,
        "oldest_version": None if oldest is None else oldest.version,
        "num_tokens": trajectory.num_tokens,
        "num_action_tokens": trajectory.num_action_tokens,
        "task_payload": msgspec.json.encode(task.payload).decode(),
        "task_seed": task.seed,
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "steps": [{name: getattr(record, name) for name in _STEP_FIELDS} for record in trajectory.steps],
        "sequences": [_sequence_row(sequence) for sequence in trajectory.sequences],
    }


def from_row(row: dict[str, Any]) -> Trajectory:
    """Return the trajectory of a row.

    Args:
        row: As `to_row` made it, or as JSON or Parquet give it back.

    Raises:
        RecordError: A column is missing or of another version, or the values contradict one another.
    """
    try:
        if row["schema_version"] != SCHEMA_VERSION:
            raise RecordError(
                "bad_schema", "row of another schema", got=row["schema_version"], limit=SCHEMA_VERSION
            )
        plain = {name: row[name] for name in _PLAIN if name in row or name not in _ADDED}
        # Parquet gives a map back as pairs.
        plain["metrics"] = dict(row["metrics"])
        return Trajectory(
            **plain,
            steps=tuple(StepRecord(**record) for record in row["steps"]),
            sequences=tuple(_sequence_of(sequence) for sequence in row["sequences"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordError("bad_row", f"not a row of a trajectory: {error}") from error


def _sequence_row(sequence: Sequence) -> dict[str, Any]:
    return {
        "tokens": sequence.tokens.tolist(),
        "behavior_logprobs": sequence.behavior_logprobs.tolist(),
        "action_spans": [
            {"start": span.start, "stop": span.stop, "step": span.step} for span in sequence.action_spans
        ],
        "version_spans": [
            {
                "num_tokens": span.num_tokens,
                "incarnation": span.version.incarnation,
                "version": span.version.version,
                "kv_incarnation": span.kv_version.incarnation,
                "kv_version": span.kv_version.version,
            }
            for span in sequence.version_spans
        ],
        **{name: getattr(sequence.sampling, name) for name in _SAMPLING_FIELDS},
    }


def _sequence_of(row: dict[str, Any]) -> Sequence:
    return Sequence(
        tokens=np.array(row["tokens"], np.int32),
        behavior_logprobs=np.array(row["behavior_logprobs"], np.float32),
        action_spans=tuple(ActionSpan(**span) for span in row["action_spans"]),
        version_spans=tuple(
            VersionSpan(
                span["num_tokens"],
                PolicyVersion(span["incarnation"], span["version"]),
                PolicyVersion(span["kv_incarnation"], span["kv_version"]),
            )
            for span in row["version_spans"]
        ),
        sampling=Sampling(**{name: row[name] for name in _SAMPLING_FIELDS}),
    )
