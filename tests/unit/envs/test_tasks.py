from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from forebay.envs.calculator import parse_expression
from forebay.envs.tasks import (
    MAX_LINE_BYTES,
    TaskStream,
    WeightedTasks,
    load_tasks,
    split_held_out,
    tasks_fingerprint,
)
from forebay.errors import ConfigError
from forebay.trajectory import Task


def make(count: int, environment: str = "e", prefix: str = "t") -> tuple[Task, ...]:
    return tuple(
        Task(task_id=f"{prefix}{i}", environment=environment, payload={"i": i}) for i in range(count)
    )


def test_jsonl_is_loaded_in_order(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"task_id": "b", "payload": {"q": "é"}}\n\n{"task_id": "a", "payload": {}}')
    assert [(t.task_id, t.environment, t.payload) for t in load_tasks(path, "web")] == [
        ("b", "web", {"q": "é"}),
        ("a", "web", {}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"task_id": "a", "payload": {}}\n{"task_id": "a", "payload": {}}',
            r":2 repeats a task_id \(got a\)",
        ),
        (b'{"task_id": "a", "payload": {}}\n\n{"task_id": "b"', r":3 is not a task"),
        (b'{"task_id": "../x", "payload": {}}', r":1 is not a task: task_id must start with"),
        (b'{"task_id": "a", "payload": []}', r":1 is not a task"),
        (b'{"task_id": "a", "payload": {}, "answer": 1}', r":1 is not a task.*answer"),
        (b'{"task_id": "\xff", "payload": {}}', r":1 is not a task"),
        (b"[" * 100_000, r":1 is not a task"),
        (b"x" * (MAX_LINE_BYTES + 1), r":1 is too long"),
        (b"\n\n", r"no tasks in"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_tasks(path, "e")
    with pytest.raises(ConfigError, match="no task file"):
        load_tasks(tmp_path / "none.jsonl", "e")


def test_held_out_tasks_stay_held_out_when_tasks_are_added() -> None:
    train, held_out = split_held_out(make(1000), 0.1)
    assert len(train) + len(held_out) == 1000
    assert 70 < len(held_out) < 130
    _, more = split_held_out(make(2000), 0.1)
    assert {t.task_id for t in held_out} == {t.task_id for t in more} & {t.task_id for t in make(1000)}
    assert split_held_out(make(10), 0.0)[1] == ()


def test_an_epoch_poses_each_task_once_in_its_own_order() -> None:
    stream = TaskStream([WeightedTasks(make(50))], seed=3)
    epochs = [[stream.task_at(50 * e + i).task_id for i in range(50)] for e in range(3)]
    assert all(len(set(epoch)) == 50 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != [TaskStream([WeightedTasks(make(50))], seed=4).task_at(i).task_id for i in range(50)]


def test_a_resumed_stream_goes_on_where_it_stopped() -> None:
    whole = [TaskStream([WeightedTasks(make(7))], seed=0).task_at(i) for i in range(40)]
    resumed = TaskStream([WeightedTasks(make(7))], seed=0)
    assert [resumed.task_at(i) for i in range(25, 40)] == whole[25:]
    assert len({t.seed for t in whole}) == 40


def test_a_task_may_have_several_places_in_a_row_of_its_environment() -> None:
    sources = [WeightedTasks(make(6, "a", "a"), 0.5), WeightedTasks(make(6, "b", "b"), 0.5)]
    stream = TaskStream(sources, seed=1, repeats=3)
    posed = [stream.task_at(i) for i in range(36)]
    for name in ("a", "b"):
        ids = [task.task_id for task in posed if task.environment == name]
        assert len(set(ids[::3])) == 6
        assert ids == [task_id for task_id in ids[::3] for _ in range(3)]


def test_the_stream_of_a_seed_never_changes() -> None:
    stream = TaskStream([WeightedTasks(make(10))], seed=0)
    assert [int(stream.task_at(i).task_id[1:]) for i in range(10)] == [1, 3, 0, 2, 8, 6, 9, 5, 7, 4]
    assert stream.task_at(0).seed == 1040509092


def test_environments_share_the_stream_by_weight() -> None:
    stream = TaskStream(
        [
            WeightedTasks(make(10, "a", "a"), 0.5),
            WeightedTasks(make(5, "b", "b"), 0.3),
            WeightedTasks(make(20, "c", "c"), 0.2),
        ],
        seed=1,
    )
    tasks = [stream.task_at(i) for i in range(1000)]
    for end in (10, 50, 137, 1000):
        counts = Counter(t.environment for t in tasks[:end])
        for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
            assert abs(counts[name] - share * end) <= 2
    of_b = [t.task_id for t in tasks if t.environment == "b"]
    assert all(len(set(of_b[i : i + 5])) == 5 for i in range(0, 300, 5))


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 tasks"):
        TaskStream([WeightedTasks(())], seed=0)
    with pytest.raises(ConfigError, match="at least one"):
        TaskStream([], seed=0)


def test_the_fingerprint_sees_payloads_and_order() -> None:
    tasks = make(3)
    same = Task(task_id="t0", environment="e", payload={"i": 0}, seed=9)
    assert tasks_fingerprint(tasks) == tasks_fingerprint((same, *tasks[1:]))
    assert tasks_fingerprint(tasks) != tasks_fingerprint(tasks[::-1])
    changed = Task(task_id="t0", environment="e", payload={"i": 7})
    assert tasks_fingerprint(tasks) != tasks_fingerprint((changed, *tasks[1:]))


def test_the_example_file_holds_calculator_tasks() -> None:
    path = Path(__file__).parents[3] / "examples" / "calculator_tasks.jsonl"
    tasks = load_tasks(path, "calculator")
    assert len(tasks) == 100
    assert all(parse_expression(task.payload["expression"]).terms for task in tasks)
