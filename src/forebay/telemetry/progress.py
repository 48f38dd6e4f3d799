"""Progress on the terminal: a live table where there is one, a line now and then where there is not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from forebay.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is shown of a run at one moment; None where it is not known yet.

    Args:
        step: Optimizer steps taken.
        busy: Share of the time inside compiled training programs, 0 to 1.
        goodput: Fresh tokens per second over those of the bare step, 0 to 1.
        starved: Share of the time spent waiting for trajectories, 0 to 1.
        buffer: Settled groups in the store.
        staleness: Mean staleness of the last batch, in versions.
        reward: Mean reward of the last batch.
        tokens_per_s: Fresh tokens trained per second.
        compiles: Programs built after warm-up.
    """

    step: int
    busy: float | None = None
    goodput: float | None = None
    starved: float | None = None
    buffer: int | None = None
    staleness: float | None = None
    reward: float | None = None
    tokens_per_s: float | None = None
    compiles: int | None = None


_FRACTIONS = {"busy", "goodput", "starved"}


class ProgressPrinter:
    """Shows progress; nothing runs between updates, so that the learner's core stays the learner's.

    Args:
        num_steps: Steps of the whole run; None if it is endless.
        clock: Source of time.
        stream: Where to print; stderr by default.
        every_s: Seconds between lines where there is no terminal.
        refresh_s: Seconds between redraws of the table where there is one.
    """

    def __init__(
        self,
        num_steps: int | None,
        clock: Clock,
        *,
        stream: IO[str] | None = None,
        every_s: float = 10.0,
        refresh_s: float = 0.25,
    ) -> None:
        self._num_steps = num_steps
        self._clock = clock
        self._console = Console(file=stream, stderr=stream is None)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._interval_s = refresh_s if self._live else every_s
        self._next_s = clock.monotonic_s()
        self._pending: Progress | None = None

    def __enter__(self) -> ProgressPrinter:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, progress: Progress) -> None:
        """Show `progress` if it is time to; the last one is shown at the end in any case."""
        self._pending = progress
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._show(progress)

    def close(self) -> None:
        """Show the last progress and leave the terminal as it was; may be called again."""
        if self._pending is not None:
            self._show(self._pending)
        if self._live:
            self._live.stop()

    def _show(self, progress: Progress) -> None:
        self._pending = None
        if self._live:
            self._live.update(self._table(progress), refresh=True)
            return
        print(format_line(progress, self._num_steps), file=self._console.file, flush=True)

    def _table(self, progress: Progress) -> Table:
        table = Table(box=None, pad_edge=False)
        cells = _cells(progress, self._num_steps)
        for name in cells:
            table.add_column(name.replace("_per_s", "/s"), justify="right", style="bold")
        table.add_row(*cells.values())
        return table


def format_line(progress: Progress, num_steps: int | None = None) -> str:
    """Return progress as one plain line.

    Example:
        >>> format_line(Progress(step=3, busy=0.973, compiles=0), 40)
        'step 3/40  busy 97.3%  compiles 0'
    """
    cells = _cells(progress, num_steps)
    return "  ".join(f"{name} {cell}" for name, cell in cells.items() if cell != "-").replace("_per_s", "/s")


def _cells(progress: Progress, num_steps: int | None) -> dict[str, str]:
    cells = {field.name: _cell(field.name, getattr(progress, field.name)) for field in fields(progress)}
    if num_steps is not None:
        cells["step"] += f"/{num_steps}"
    return cells


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _FRACTIONS:
        return f"{100 * value:.1f}%"
    if name == "tokens_per_s":
        return f"{value:.0f}"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
