from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.trajectory import (
    MAX_COUNT,
    ActionSpan,
    PolicyVersion,
    Sampling,
    Sequence,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
    check_name,
)

EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "expected.json").read_text())
V0, V1 = PolicyVersion(0, 0), PolicyVersion(0, 1)


def sequence(**changes: Any) -> Sequence:
    fields: dict[str, Any] = {
        "tokens": np.array([7, 8, 9, 1], np.int32),
        "action_spans": (ActionSpan(1, 2, 0), ActionSpan(3, 4, 1)),
        "behavior_logprobs": np.array([-0.5, -1.5], np.float32),
        "version_spans": (VersionSpan(1, V0, V0), VersionSpan(1, V1, V0)),
        "sampling": Sampling(),
    }
    return Sequence(**(fields | changes))


def trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": "t", "run_id": "r", "incarnation": 0, "group_id": "g", "group_size": 4, "member": 3,
        "attempt": 0, "task_id": "k", "environment": "e", "sequences": (sequence(),),
        "steps": (StepRecord(None, "stop", 0.0, 0.0, 0.0), StepRecord(1.0, "stop", 0.0, 0.0, 0.0)),
        "reward": 1.0, "terminated": True, "truncated": False, "finish": "terminated",
        "started_s": 1.0, "finished_s": 2.0,
    }  # fmt: skip
    return Trajectory(**(fields | changes))


def refusal(make: Any, **changes: Any) -> str:
    with pytest.raises(RecordError) as caught:
        make(**changes)
    return caught.value.reason


def test_a_valid_trajectory_counts_its_tokens() -> None:
    two = trajectory(sequences=(sequence(), sequence()))
    assert (two.num_tokens, two.num_action_tokens, two.oldest_version) == (8, 4, V0)
    assert trajectory(sequences=()).oldest_version is None
    assert sequence().action_mask().tolist() == [False, True, False, True]


def test_c02_ids_and_logprobs_of_different_length_are_refused_by_name() -> None:
    ids = np.array([5, 2, 3, 1, 4], np.int32)
    logprobs = np.array([-1.0, -1.0, -1.0], np.float32)
    whole = (VersionSpan(4, V0, V0),)
    changes = {"tokens": ids, "action_spans": (ActionSpan(1, 5, 0),), "version_spans": whole}
    with pytest.raises(RecordError, match=r"got 3, limit 4") as caught:
        sequence(behavior_logprobs=logprobs, **changes)
    assert caught.value.reason == "logprob_mismatch"
    assert refusal(sequence, behavior_logprobs=np.zeros(5, np.float32), **changes) == "logprob_mismatch"


def test_c31_one_version_per_token() -> None:
    versions = EXPECTED["C31"]["input"]["token_versions"]
    changes: dict[str, Any] = {
        "tokens": np.arange(6, dtype=np.int32),
        "action_spans": (ActionSpan(1, 6, 0),),
        "behavior_logprobs": np.zeros(5, np.float32),
    }
    spans = [VersionSpan(versions.count(v), PolicyVersion(0, v), PolicyVersion(0, 3)) for v in (3, 4, 5)]
    assert sequence(version_spans=tuple(spans), **changes).num_action_tokens == 5
    assert refusal(sequence, version_spans=tuple(spans[:2]), **changes) == "version_mismatch"
    empty = (*spans, VersionSpan(0, V1, V0))
    assert refusal(sequence, version_spans=empty, **changes) == "version_mismatch"


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("bad_array", {"tokens": np.array([7, 8, 9, 1], np.int64)}),
        ("bad_array", {"tokens": np.array([[7, 8, 9, 1]], np.int32)}),
        ("bad_array", {"behavior_logprobs": np.array([-0.5, -1.5])}),
        ("empty_sequence", {"tokens": np.array([], np.int32)}),
        ("bad_token", {"tokens": np.array([7, -8, 9, 1], np.int32)}),
        ("bad_span", {"action_spans": (ActionSpan(1, 1, 0), ActionSpan(2, 4, 1))}),
        ("bad_span", {"action_spans": (ActionSpan(2, 3, 0), ActionSpan(1, 2, 1))}),
        ("bad_span", {"action_spans": (ActionSpan(1, 3, 0), ActionSpan(2, 3, 1))}),
        ("bad_span", {"action_spans": (ActionSpan(3, 5, 0),)}),
        ("bad_span", {"action_spans": (ActionSpan(-1, 1, 0),)}),
        ("bad_span", {"action_spans": (ActionSpan(1, 3, -1),)}),
        ("logprob_mismatch", {"action_spans": ()}),
        ("logprob_nonfinite", {"behavior_logprobs": np.array([-0.5, np.nan], np.float32)}),
        ("logprob_nonfinite", {"behavior_logprobs": np.array([-np.inf, -0.5], np.float32)}),
        ("logprob_nonfinite", {"behavior_logprobs": np.array([-0.5, np.inf], np.float32)}),
        ("logprob_nonfinite", {"behavior_logprobs": np.array([-0.5, 0.002], np.float32)}),
        ("version_mismatch", {"version_spans": (VersionSpan(2, V0, V1),)}),
        ("bad_count", {"version_spans": (VersionSpan(2, V1, PolicyVersion(0, -1)),)}),
        ("bad_count", {"version_spans": (VersionSpan(2, PolicyVersion(0, MAX_COUNT + 1), V0),)}),
        ("bad_count", {"version_spans": (VersionSpan(2, PolicyVersion(MAX_COUNT + 1, 0), V0),)}),
        ("bad_count", {"version_spans": (VersionSpan(2, V1, PolicyVersion(-1, 0)),)}),
    ],
)
def test_a_sequence_that_contradicts_itself_is_refused(reason: str, changes: dict[str, Any]) -> None:
    assert refusal(sequence, **changes) == reason


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("bad_name", {"trajectory_id": "../etc/passwd"}),
        ("bad_name", {"group_id": ""}),
        ("bad_name", {"run_id": "a" * 129}),
        ("bad_name", {"task_id": "line\n"}),
        ("bad_name", {"environment": ".hidden"}),
        ("bad_member", {"member": 4}),
        ("bad_member", {"member": -1}),
        ("bad_member", {"group_size": MAX_COUNT + 1}),
        ("bad_count", {"incarnation": -1}),
        ("bad_count", {"attempt": MAX_COUNT + 1}),
        ("bad_reward", {"reward": math.nan}),
        ("bad_reward", {"reward": math.inf}),
        ("bad_reward", {"steps": (StepRecord(math.nan, "stop", 0.0, 0.0, 0.0),) * 2}),
        ("bad_time", {"steps": (StepRecord(None, "stop", math.nan, 0.0, 0.0),) * 2}),
        ("bad_time", {"started_s": math.inf}),
        ("bad_metric", {"metrics": {"x": math.nan}}),
        ("bad_span", {"steps": (StepRecord(None, "stop", 0.0, 0.0, 0.0),)}),
        ("bad_span", {"sequences": (sequence(action_spans=(ActionSpan(0, 1, 5), ActionSpan(1, 2, 0))),)}),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_refused(reason: str, changes: dict[str, Any]) -> None:
    assert refusal(trajectory, **changes) == reason


def test_names_at_the_limit_are_accepted() -> None:
    assert check_name("a" * 128, "run_id") == "a" * 128
    assert check_name("run-1.g:2_b", "run_id") == "run-1.g:2_b"
    assert refusal(Task, task_id="a/b", environment="e", payload={}) == "bad_name"


@pytest.mark.parametrize(
    ("changes", "trainable"),
    [
        ({}, True),
        ({"temperature": 0.6}, True),
        ({"temperature": 0.0}, False),
        ({"top_p": 0.95}, False),
        ({"top_k": 40}, False),
        ({"logprob_kind": "raw"}, False),
    ],
)
def test_only_the_full_sampled_distribution_is_trainable(changes: dict[str, Any], trainable: bool) -> None:
    assert Sampling(**changes).trainable is trainable


@pytest.mark.parametrize(
    "changes", [{"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.01}, {"top_k": -1}]
)
def test_impossible_sampling_is_refused(changes: dict[str, Any]) -> None:
    assert refusal(Sampling, **changes) == "bad_sampling"


def test_records_are_frozen() -> None:
    with pytest.raises(AttributeError):
        trajectory().reward = 2.0  # type: ignore[misc]
