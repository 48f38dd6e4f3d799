"""The environments' part of an audit, and its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from forebay.cli.audit_advice import advise, failures_text
from forebay.cli.audit_parts import PartName, Say
from forebay.cli.auditing import Auditor, failure_of
from forebay.cli.transcript import visible
from forebay.envs.conformance.watch import Stall
from forebay.planner.audit import Audit, Spread
from forebay.planner.profile import Profile
from forebay.report.text import number, seconds


class EnvironmentPart:
    """One environment under measurement.

    Args:
        auditor: Measures it.
        on_stuck: Called from another thread if it blocks the event loop for good; does not return.
    """

    name: PartName = "environment"

    def __init__(self, auditor: Auditor, on_stuck: Callable[[EnvironmentPart, Stall], None]) -> None:
        self._auditor, self._on_stuck = auditor, on_stuck
        self._is_over = self._has_begun = False

    @property
    def label(self) -> str:
        """The environment's name."""
        return self._auditor.settings.label

    @property
    def is_left_behind(self) -> bool:
        """Whether calls that ignore their cancellation keep the process alive."""
        return self._auditor.is_left_behind

    def measure(self, say: Say) -> None:
        """Measure level by level; see `Part.measure`."""
        self._has_begun = True
        self._auditor.run(say, lambda stall: self._on_stuck(self, stall))
        self._is_over = True
        if (failure := failure_of(self.conclude())) is not None:
            raise failure

    def conclude(self) -> Audit:
        """Return what has been found so far."""
        return self._auditor.conclude(interrupted=not self._is_over)

    def profile(self) -> Profile | None:
        """Return the environment's part; see `Part.profile`."""
        return self._auditor.profile(self.conclude())

    def show(self, console: Console) -> None:
        """Print the page; see `Part.show`."""
        if self._has_begun:
            show(self.conclude(), console)

    def as_json(self) -> dict[str, Any]:
        """Return what was found; see `Part.as_json`."""
        found = self.conclude()
        entry = msgspec.to_builtins(found)
        return {"environments": [{**entry, "own_share": found.own_share, "advice": advise(found)}]}


def show(found: Audit, console: Console) -> None:
    """Print an audit of an environment as a page."""
    title = f"\n{visible(found.name)}, answered with {found.actions}"
    console.print(title + (" (interrupted)" if found.interrupted else ""), style="bold", markup=False)
    if found.levels:
        console.print(_rates(found))
        console.print()
        console.print(_times(found))
        console.print()
    for sentence in advise(found):
        console.print(f"- {sentence}", markup=False)


def _rates(found: Audit) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("at a time", "answers/s", "95 %", "episodes/s", "ended"):
        table.add_column(heading, justify="right")
    table.add_column("of these failed; cut")
    for level in found.levels:
        rate = level.answers_per_s
        table.add_row(
            str(level.concurrency),
            number(rate.value),
            f"±{number(rate.high - rate.value)}",
            "-" if level.episodes_per_s is None else number(level.episodes_per_s),
            str(level.num_episodes),
            failures_text(level),
        )
    return table


def _times(found: Audit) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("time of a")
    for heading in ("at a time", "p50", "p95", "p99", "max", "samples"):
        table.add_column(heading, justify="right")
    for what in ("reset", "step", "episode"):
        for level in found.levels:
            times: Spread | None = getattr(level, f"{what}_s")
            if times is not None:
                cells = map(seconds, (times.p50, times.p95, times.p99, times.max))
                table.add_row(what, str(level.concurrency), *cells, number(times.num_samples))
    return table
