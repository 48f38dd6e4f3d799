"""Tasks: where they come from, which are held out, and which one comes when.

The stream is a pure function of (seed, serial), so that a resumed run goes on where it stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from forebay.errors import ConfigError, RecordError
from forebay.staleness import Shares
from forebay.trajectory import Task

MAX_LINE_BYTES: Final = 1 << 20


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    task_id: str
    payload: dict[str, Any]


_decoder = msgspec.json.Decoder(_Line)


def load_tasks(path: Path, environment: str) -> tuple[Task, ...]:
    """Load tasks from JSONL: one `{"task_id": ..., "payload": {...}}` a line; empty lines are skipped.

    Args:
        path: The file.
        environment: Name of the environment that poses them.

    Raises:
        ConfigError: The file is missing or empty, or a line is malformed, too long, or repeats a task_id;
            the message
            names the line.
    """
    tasks: dict[str, Task] = {}
    for number, line in read_lines(path):
        try:
            entry = _decoder.decode(line)
            task = Task(task_id=entry.task_id, environment=environment, payload=entry.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RecordError) as error:
            raise ConfigError(
                f"{path}:{number} is not a task: {error}",
                remedy='A line looks like {"task_id": "t1", "payload": {"question": "..."}}.',
            ) from error
        if task.task_id in tasks:
            raise ConfigError(f"{path}:{number} repeats a task_id", got=task.task_id)
        tasks[task.task_id] = task
    if not tasks:
        raise ConfigError(f"no tasks in {path}")
    return tuple(tasks.values())


def split_held_out(tasks: Iterable[Task], fraction: float) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Divide tasks into those trained and those held out, by a hash of the task_id.

    A task stays on its side when others are added or removed.

    Args:
        tasks: All tasks.
        fraction: Share to hold out, in [0, 1).

    Returns:
        Tasks to train on, and tasks held out.
    """
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        place = xxhash.xxh3_64_intdigest(task.task_id.encode()) / 2**64
        sides[place < fraction].append(task)
    return tuple(sides[0]), tuple(sides[1])


def tasks_fingerprint(tasks: Iterable[Task]) -> str:
    """Return an xxh3 hash, hexadecimal, of names and payloads in order."""
    digest = xxhash.xxh3_64()
    for task in tasks:
        digest.update(msgspec.json.encode((task.task_id, task.environment, task.payload), order="sorted"))
    return digest.hexdigest()


class WeightedTasks(NamedTuple):
    """Tasks of one environment, and its share of the stream."""

    tasks: tuple[Task, ...]
    weight: float = 1.0


class TaskStream:
    """An endless stream of tasks: every epoch poses each task once, in an order of its own.

    Several environments share the stream by weight: see `Shares`.

    Args:
        sources: Tasks by environment.
        seed: Seed of the order and of the tasks' own seeds.
        repeats: Places in a row, of an environment's, that belong to the same task.

    Attributes:
        shares: The environments and their weights.

    Raises:
        ConfigError: A source has no tasks, or a weight is not positive.

    Example:
        >>> tasks = tuple(Task(task_id=f"t{i}", environment="e", payload={}) for i in range(3))
        >>> stream = TaskStream([WeightedTasks(tasks)], seed=0)
        >>> sorted(stream.task_at(serial).task_id for serial in range(3))
        ['t0', 't1', 't2']
    """

    def __init__(self, sources: Sequence[WeightedTasks], seed: int, repeats: int = 1) -> None:
        for source in sources:
            if not source.tasks or not source.weight > 0.0:
                raise ConfigError(
                    "a task stream needs tasks and a positive weight for every environment",
                    got=f"{len(source.tasks)} tasks, weight {source.weight}",
                    remedy="Lower holdout_fraction, or give more tasks.",
                )
        if not sources:
            raise ConfigError("a task stream needs at least one environment")
        self._sources = tuple(sources)
        self.shares = Shares(
            tuple(source.tasks[0].environment for source in sources),
            tuple(source.weight for source in sources),
        )
        self._seed = seed
        self._repeats = repeats
        # An epoch's order is used again and again; neighbors are needed where epochs meet.
        self._order = lru_cache(maxsize=2 * len(sources))(self._shuffled)

    def task_at(self, serial: int, environment: str | None = None) -> Task:
        """Return the task of a serial, seeded so that no two serials share their episode's randomness.

        Args:
            serial: Its place in the stream.
            environment: The environment that is to pose it; by default the one whose turn it is. Another one,
                whose group was lost for instance, poses a task drawn at random, outside its epochs.
        """
        source, index = self.shares.place(serial)
        seed = xxhash.xxh3_64_intdigest(f"{self._seed}:{serial}".encode()) & 0x7FFF_FFFF
        if environment is not None and environment != self.shares.names[source]:
            tasks = self._sources[self.shares.names.index(environment)].tasks
            task = random.Random(f"{self._seed}:{environment}:{serial}").choice(tasks)
        else:
            tasks = self._sources[source].tasks
            epoch, place = divmod(index // self._repeats, len(tasks))
            task = tasks[self._order(source, epoch)[place]]
        return msgspec.structs.replace(task, seed=seed)

    def _shuffled(self, source: int, epoch: int) -> list[int]:
        order = list(range(len(self._sources[source].tasks)))
        random.Random(f"{self._seed}:{source}:{epoch}").shuffle(order)
        return order


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSONL file that are not empty, with their numbers from 1.

    Raises:
        ConfigError: The file is missing, or a line exceeds 1 MiB.
    """
    if not path.is_file():
        raise ConfigError(f"no task file {path}", remedy="Check environment.NAME.tasks.")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(f"{path}:{number} is too long", limit=f"{MAX_LINE_BYTES} bytes")
            if line.strip():
                yield number, line
