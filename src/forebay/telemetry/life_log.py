"""`life.jsonl`: the lives of the trajectories of each batch, and what was inside the queues meanwhile.

A line per trained batch, whole or not at all. A batch that a resume trains from the journal writes none: its
trajectories have lived already, or waited while nobody trained. A batch that takes the place of another one's
step replaces it, and all later ones, as in `metrics.jsonl`.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from forebay.clock import Clock
from forebay.telemetry.life_table import Life, whole
from forebay.telemetry.little import Flow
from forebay.telemetry.metrics import MetricsWriter, surviving
from forebay.trajectory import Count

T = TypeVar("T")
# Some ten thousand batches, twice: the file before it is kept.
_MAX_BYTES: Final = 128 * 2**20
logger = logging.getLogger(__name__)


class LifeLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is recorded of one batch.

    Args:
        step: The version that it made.
        time_s: Wall clock at the end of its step.
        wall_s: Time since the line before, or since the learner began to wait for its first batch.
        environments: The lives of its trajectories.
        flows: What passed through the queues with it, and what was seen inside since the line before.
    """

    step: Count
    time_s: float
    wall_s: float
    environments: dict[str, Life]
    flows: dict[str, Flow] = {}


class LifeTable(msgspec.Struct, frozen=True, kw_only=True):
    """The lives of a run, or of a part of it.

    Args:
        environments: By environment.
        flows: What passed through the queues, and what was seen inside.
        wall_s: Time that the lines cover.
        num_batches: Batches.
    """

    environments: Mapping[str, Life]
    flows: Mapping[str, Flow]
    wall_s: float
    num_batches: int

    @property
    def whole(self) -> Life:
        """The lives of all environments as one."""
        return whole(self.environments)


class LifeLog:
    """Writes `life.jsonl`.

    Args:
        path: The file; continued if it exists.
        clock: Dates the lines.

    Attributes:
        path: The file.
        num_too_long: Batches of so many environments that their line would exceed 1 MiB; they are left out.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._writer = MetricsWriter(path, clock, max_bytes=_MAX_BYTES)
        self.num_too_long = 0

    def __enter__(self) -> LifeLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self, step: int, wall_s: float, environments: Mapping[str, Life], flows: Mapping[str, Flow]
    ) -> None:
        """Append the line of one batch.

        Raises:
            OSError: The disk is full, or fails.
        """
        line = {"wall_s": wall_s, "environments": environments, "flows": flows}
        try:
            self._writer.write(step, line)
        except ValueError as error:
            self.num_too_long += 1
            if self.num_too_long == 1:
                logger.warning("the lives of a batch are left out: %s", error)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def read_lives(path: Path) -> LifeTable | None:
    """Add up the lines of the surviving history; None if there are none.

    Args:
        path: The file; the one that it replaced is read before it. Either may be missing.
    """
    return read_lives_since(path, math.inf)[0]


def read_lives_since(path: Path, since_s: float) -> tuple[LifeTable | None, LifeTable | None]:
    """Add up the lines of the surviving history, and those of its end apart; None where there are none.

    Memory does not depend on the length of the run, but for a few bytes a line.

    Args:
        path: The file; the one that it replaced is read before it. Either may be missing.
        since_s: Wall clock at which the end begins.
    """
    files = [one for one in (path.with_name(f"{path.name}.1"), path) if one.is_file()]
    heads = array("q", (-1 if head is None else head.step for head in _decoded(files, _Head)))
    keeps = iter(surviving([step for step in heads if step >= 0]))
    kept = (step >= 0 and next(keeps) for step in heads)
    whole_run, end = _Sum(), _Sum()
    for is_kept, line in zip(kept, _decoded(files, LifeLine), strict=False):
        if is_kept and line is not None:
            whole_run.add(line)
            if line.time_s >= since_s:
                end.add(line)
    return whole_run.table(), end.table()


class _Head(msgspec.Struct, frozen=True, gc=False):
    step: Count
    time_s: float
    wall_s: float


class _Sum:
    """Lines added up."""

    def __init__(self) -> None:
        self._environments: dict[str, Life] = {}
        self._flows: dict[str, Flow] = {}
        self._wall_s = 0.0
        self._num_batches = 0

    def add(self, line: LifeLine) -> None:
        for name, life in line.environments.items():
            self._environments.setdefault(name, Life()).merge(life)
        for queue, flow in line.flows.items():
            self._flows.setdefault(queue, Flow()).merge(flow)
        self._wall_s += line.wall_s
        self._num_batches += 1

    def table(self) -> LifeTable | None:
        if not self._num_batches:
            return None
        return LifeTable(
            environments=self._environments,
            flows=self._flows,
            wall_s=self._wall_s,
            num_batches=self._num_batches,
        )


def _decoded(files: Iterable[Path], kind: type[T]) -> Iterator[T | None]:
    """Yield every line as a record; None for one that is not whole."""
    decoder = msgspec.json.Decoder(kind)
    for path in files:
        with path.open("rb") as file:
            for raw in file:
                try:
                    yield decoder.decode(raw)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    yield None
