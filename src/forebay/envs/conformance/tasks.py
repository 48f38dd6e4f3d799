"""Are there tasks, always the same ones, that can be stored and told apart?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from forebay.envs.conformance.findings import Finding
from forebay.envs.conformance.subject import CallFailedError, Subject
from forebay.envs.registry import load_class
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.tasks import MAX_LINE_BYTES, load_tasks, split_held_out
from forebay.errors import RecordError
from forebay.trajectory import Task

_MAX_TASKS = 2000
_SHAPE_REMEDY = (
    'Yield {"task_id": "t1", "payload": {...}}: a name of letters, digits and ._:-, and JSON types.'
)


async def check_tasks(subject: Subject) -> tuple[list[Finding], tuple[Task, ...]]:
    """Load the tasks as a run does, twice.

    Returns:
        What was found, and the tasks.

    Raises:
        CallFailedError: There is none to play.
    """
    settings = subject.kind.settings
    if not settings.tasks and getattr(load_class(settings.entrypoint), "generate_tasks", None) is None:
        remedy = (
            "Give the class a static generate_tasks, or name a file in environment.NAME.tasks (--config)."
        )
        raise CallFailedError(Finding("tasks", "fault", "there are no tasks", remedy))
    try:
        tasks = await subject.call(lambda: _load(settings), "generate_tasks")
        again = await subject.call(lambda: _load(settings), "generate_tasks")
    except CallFailedError as failed:
        raise CallFailedError(
            msgspec.structs.replace(failed.finding, check="tasks", remedy=_SHAPE_REMEDY), stuck=failed.stuck
        ) from failed
    findings = [*_judge(tasks, settings)]
    if any(finding.level == "fault" for finding in findings):
        return findings, tasks
    if [msgspec.json.encode(task) for task in tasks] != [msgspec.json.encode(task) for task in again]:
        remedy = "Draw from random.Random(seed) alone: a resumed run must pose the same tasks."
        findings.append(Finding("tasks", "fault", "the same seed gives other tasks the second time", remedy))
    if not findings:
        held_out = (
            "from a file"
            if settings.holdout_tasks
            else len(split_held_out(tasks, settings.holdout_fraction)[1])
        )
        what = f"{len(tasks)} tasks, the same twice, all different; held out: {held_out}"
        findings.append(Finding("tasks", "ok", what))
    return findings, tasks


async def _load(settings: EnvironmentSettings) -> tuple[Task, ...]:
    if settings.tasks:
        return load_tasks(Path(settings.tasks), settings.label)
    generator: Any = load_class(settings.entrypoint).generate_tasks
    count = min(settings.num_tasks, _MAX_TASKS)
    entries = islice(generator(count, settings.tasks_seed, **settings.tasks_kwargs), count + 1)
    return tuple(_task(entry, settings.label) for entry in entries)


def _task(entry: Any, environment: str) -> Task:
    if not (isinstance(entry, dict) and set(entry) == {"task_id", "payload"}):
        raise TypeError(f"generate_tasks gave {entry!r:.120}")
    return Task(environment=environment, **entry)


def _judge(tasks: tuple[Task, ...], settings: EnvironmentSettings) -> Iterator[Finding]:
    if not tasks:
        raise CallFailedError(Finding("tasks", "fault", "there are no tasks", _SHAPE_REMEDY))
    names = {task.task_id for task in tasks}
    if len(names) < len(tasks):
        what = f"{len(tasks) - len(names)} of {len(tasks)} tasks repeat a task_id"
        yield Finding("tasks", "fault", what, "Give every task a task_id of its own.")
    wanted = min(settings.num_tasks, _MAX_TASKS)
    if not settings.tasks and len(tasks) != wanted:
        given = "more" if len(tasks) > wanted else len(tasks)
        what = f"generate_tasks was asked for {wanted} tasks and gave {given}"
        yield Finding(
            "tasks", "warning", what, "Yield as many as asked for, or set num_tasks to what there is."
        )
    yield from _judge_payloads(tasks)
    if not settings.holdout_tasks and not split_held_out(tasks, settings.holdout_fraction)[1]:
        remedy = "Give more tasks, raise holdout_fraction, or set learner.eval_every=0."
        yield Finding("tasks", "warning", "no task is held out: there is nothing for forebay eval", remedy)


def _judge_payloads(tasks: tuple[Task, ...]) -> Iterator[Finding]:
    for task in tasks:
        try:
            text = msgspec.json.encode(task.payload)
        except (TypeError, RecordError) as error:
            yield Finding(
                "tasks", "fault", f"the payload of {task.task_id} is not JSON: {error}", _SHAPE_REMEDY
            )
            return
        if len(text) > MAX_LINE_BYTES:
            what = f"the payload of {task.task_id} has {len(text)} bytes, more than {MAX_LINE_BYTES}"
            yield Finding("tasks", "fault", what, "Put a reference into it instead of the data.")
            return
        if msgspec.json.decode(text) != task.payload:
            what = f"the payload of {task.task_id} reads back differently from JSON"
            yield Finding("tasks", "warning", what, "Use lists for tuples, text for keys, and no nan.")
            return
