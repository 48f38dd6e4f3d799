from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings

from forebay.errors import RecordError
from forebay.store.rows import SCHEMA_VERSION, from_row, to_row
from forebay.trajectory import Task, Trajectory
from forebay.wire import encode
from tests.properties.strategies import trajectories

TASK = Task(task_id="t", environment="e", payload={"question": "1 + 1"}, seed=7)


@settings(max_examples=50)
@given(trajectories())
def test_a_row_makes_the_same_trajectory_again(trajectory: Trajectory) -> None:
    row = to_row(trajectory, TASK, "recorded", 3)
    read = json.loads(msgspec.json.encode(row))
    assert encode(from_row(read)) == encode(trajectory)
    assert read["num_tokens"] == trajectory.num_tokens and read["step"] == 3
    assert json.loads(read["task_payload"]) == TASK.payload and read["schema_version"] == SCHEMA_VERSION


def row() -> dict:
    from forebay.store import Slot
    from tests.unit.store.builders import FIRST, RUN, make_spec, make_trajectory

    spec = make_spec(0)
    slot = Slot(
        group_id="g0", member=0, attempt=0, task=spec.task, group_size=2, incarnation=0, min_version=FIRST,
        lease_expires_s=0.0, group_deadline_s=0.0, run_id=RUN,
    )  # fmt: skip
    return to_row(make_trajectory(slot), spec.task, "open", None)


def test_a_row_of_an_older_version_lacks_what_it_did_not_know() -> None:
    old = {name: value for name, value in row().items() if name != "reset_s"}
    assert from_row(old).reset_s is None


def test_what_is_no_row_is_refused() -> None:
    good = row()
    assert from_row(good).trajectory_id == "g0.0.0"
    for bad in (
        {},
        {**good, "schema_version": 2},
        {name: value for name, value in good.items() if name != "sequences"},
        {**good, "sequences": [{**good["sequences"][0], "tokens": ["x"]}]},
        {**good, "sequences": [{**good["sequences"][0], "behavior_logprobs": []}]},
        {**good, "metrics": 3},
        {**good, "reward": float("nan")},
    ):
        with pytest.raises(RecordError):
            from_row(bad)
