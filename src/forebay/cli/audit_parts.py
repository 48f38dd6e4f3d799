"""What every part of an audit is to the session that runs them, and the words that they share."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, get_args

from rich.console import Console
from rich.table import Table

from forebay.clock import Clock
from forebay.errors import ConfigError
from forebay.planner.distribution import Distribution
from forebay.planner.profile import Origin, Profile
from forebay.report.text import number, seconds

PartName = Literal["environment", "generator", "weights", "store", "learner"]
# In the order in which they are measured: what one of them finds is what the next one is measured with.
PART_NAMES: Final[tuple[PartName, ...]] = get_args(PartName)
Say = Callable[[str], None]


class Part(Protocol):
    """One part of a run under measurement."""

    @property
    def name(self) -> PartName:
        """Which."""
        ...

    def measure(self, say: Say) -> None:
        """Measure; what was measured stays, also if this is interrupted.

        Raises:
            ForebayError: It cannot be measured.
            KeyboardInterrupt: Ctrl-C.
        """
        ...

    def profile(self) -> Profile | None:
        """Return this part of a profile as far as it was measured; None if there is too little."""
        ...

    def show(self, console: Console) -> None:
        """Print what was found; nothing if nothing was."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return what was found for scripts, as keys of the one object that is printed."""
        ...


def named_parts(words: Sequence[str]) -> tuple[PartName, ...]:
    """Return parts by their names, in the order in which they are measured.

    Raises:
        ConfigError: There is none of such a name.
    """
    unknown = [word for word in words if word not in PART_NAMES]
    if unknown:
        raise ConfigError("no such part", got=", ".join(unknown), limit=", ".join(PART_NAMES))
    return tuple(name for name in PART_NAMES if name in words)


def make_origin(clock: Clock, began_s: float, how: str, on: str = "") -> Origin:
    """Return where and when a part was measured: here and now.

    Args:
        clock: Source of time.
        began_s: Wall clock at its beginning.
        how: The command.
        on: What else a reader must know of the machine: a device, cores.
    """
    now_s = clock.wall_s()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Origin(
        machine=f"{machine}; {on}" if on else machine,
        measured=datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        how=how,
        duration_s=round(now_s - began_s, 1),
    )


def times_table(heading: str, rows: Sequence[tuple[str, Distribution | None]]) -> Table:
    """Return a table of measured times, a line each; those that were not measured are left out."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(heading, no_wrap=True)
    for name in ("mean", "p50", "p95", "p99", "max", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in rows:
        if found is not None:
            values = (found.mean, *map(found.quantile, (0.5, 0.95, 0.99)), found.max)
            table.add_row(name, *map(seconds, values), number(found.num_samples))
    return table
