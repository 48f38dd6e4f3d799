"""Charts of columns: which lines are drawn, by run and by figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from forebay.report.columns import figures, has
from forebay.report.panels import Chart, Form, Line, Mark, Note, Part, RunTables, Source

# Of two runs: gray for what is compared with, blue for the other. No color of a learner's state.
RUN_COLORS: Final = (7, 0)


class Curve(NamedTuple):
    """A figure that a chart shows for every run that has it.

    Attributes:
        column: Its column.
        label: Its name.
        source: The table that has it.
        low: Column of the lower ends of its error bars.
        high: Column of their upper ends.
    """

    column: str
    label: str
    source: Source = "batches"
    low: str | None = None
    high: str | None = None


class Axis(NamedTuple):
    """The vertical axis of a chart: its unit in words, how values are written, its ends, and limits on it."""

    unit: str
    form: Form = "number"
    low: float | None = None
    high: float | None = None
    marks: tuple[Mark, ...] = ()


class Plot(NamedTuple):
    """A chart before there are runs to show in it.

    Attributes:
        anchor: Unique name.
        title: What is shown.
        axis: The vertical axis.
        curves: What is drawn for every run that has it.
        is_optional: Whether most runs have none of it, so that it is left out without a note.
    """

    anchor: str
    title: str
    axis: Axis
    curves: tuple[Curve, ...]
    is_optional: bool = False


def charts(runs: Sequence[RunTables], plots: Iterable[Plot]) -> tuple[Part, ...]:
    """Return each plot with a line for each curve of each run, or a note where a run should have recorded it.

    A single run has a color for each curve; two runs have a color each, and a dash pattern for each curve.
    """
    parts = (_chart(runs, plot) for plot in plots)
    return tuple(part for part in parts if part is not None)


def _chart(runs: Sequence[RunTables], plot: Plot) -> Part | None:
    lines = tuple(
        _line(runs, run, index, curve)
        for run, tables in enumerate(runs)
        for index, curve in enumerate(plot.curves)
        if has(tables, curve.source, curve.column)
    )
    if not lines:
        return None if plot.is_optional else Note(text=f"{plot.title}: not recorded by this run.")
    axis = plot.axis
    return Chart(
        anchor=plot.anchor,
        title=plot.title,
        unit=axis.unit,
        form=axis.form,
        lines=lines,
        low=axis.low,
        high=axis.high,
        marks=axis.marks,
        rows=figures(runs, lines, axis.form),
    )


def _line(runs: Sequence[RunTables], run: int, index: int, curve: Curve) -> Line:
    several = len(runs) > 1
    return Line(
        run=run,
        source=curve.source,
        column=curve.column,
        label=f"{runs[run].name}: {curve.label}" if several else curve.label,
        color=RUN_COLORS[run] if several else index,
        dash=index if several else 0,
        low=curve.low,
        high=curve.high,
    )
