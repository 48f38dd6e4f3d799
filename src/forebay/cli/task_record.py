"""Which tasks a run was started with: another set would be posed from the middle of its order."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forebay.config import RunConfig
from forebay.envs.registry import load_task_sets
from forebay.errors import ConfigError
from forebay.telemetry.files import write_atomically

_FILE = "tasks.json"


class TaskRecord(msgspec.Struct, frozen=True):
    """The tasks of one environment.

    Args:
        num_train: Tasks to train on.
        num_held_out: Tasks never trained.
        fingerprint: Changes when any of them does.
    """

    num_train: int
    num_held_out: int
    fingerprint: str


def check_tasks(path: Path, config: RunConfig) -> None:
    """Refuse tasks that are not those that a run was started with; note them if it has just been made.

    Args:
        path: The run directory.
        config: Says where the tasks are.

    Raises:
        ConfigError: Tasks were added, removed, reordered or edited since, or the record is damaged.
    """
    source = path / _FILE
    now = {name: _record(config, name) for name in config.environment}
    if not source.exists():
        write_atomically(source, msgspec.json.format(msgspec.json.encode(now), indent=1))
        return
    try:
        before = msgspec.json.decode(source.read_bytes(), type=dict[str, TaskRecord])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{source} is damaged: {error}",
            remedy="Remove it if the tasks are those that the run was started with.",
        ) from error
    for name, record in now.items():
        if before.get(name) != record:
            raise ConfigError(
                f"the tasks of environment {name} are not those that {path} was started with",
                got=_describe(record),
                limit=_describe(before.get(name)),
                remedy="Restore them, or start another run.name, from exported weights if you like.",
            )


def _record(config: RunConfig, name: str) -> TaskRecord:
    sets = load_task_sets(config.environment[name])
    return TaskRecord(len(sets.train), len(sets.held_out), sets.fingerprint)


def _describe(record: TaskRecord | None) -> str:
    if record is None:
        return "none"
    return f"{record.num_train} to train on, {record.num_held_out} held out, hash {record.fingerprint[:8]}"
