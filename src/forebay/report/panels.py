"""What a page is made of: panels, and the kinds of pictures and tables in them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Source = Literal["batches", "evaluations", "actors"]
Form = Literal["number", "percent", "seconds", "bytes"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart.

    Args:
        run: Index of the run.
        source: The table of that run.
        column: The column of that table.
        label: Its name in the legend.
        color: Index into the page's palette.
        dash: Index into the page's dash patterns; 0 is solid.
        low: Column of the lower ends of error bars.
        high: Column of their upper ends.
    """

    run: int
    source: Source
    column: str
    label: str
    color: int
    dash: int = 0
    low: str | None = None
    high: str | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A horizontal line at a limit."""

    value: float
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True, tag="chart"):
    """Lines over time or steps, drawn in the browser.

    Args:
        anchor: Unique name.
        title: What is shown.
        unit: Of the vertical axis, in words.
        form: How values are written.
        lines: At least one.
        low: Where the vertical axis begins; None for the least value.
        high: Where it ends; None for the largest value.
        marks: Limits.
        rows: The same in figures: label, then first, least, mean, largest and last value.
    """

    anchor: str
    title: str
    unit: str
    form: Form
    lines: tuple[Line, ...]
    low: float | None = None
    high: float | None = None
    marks: tuple[Mark, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class StripRow(msgspec.Struct, frozen=True, kw_only=True):
    """The time strip of one run.

    Args:
        name: The run.
        detail: What it is compared by, such as its limit of staleness.
        paths: State and SVG path.
        num_columns: Width of the paths.
        width: Share of the page's width, so that all strips have one time scale.
        ticks: Labels along it, evenly spaced from 0 to its end.
        summary: What it says, for those who do not see it.
    """

    name: str
    detail: str
    paths: tuple[tuple[str, str], ...]
    num_columns: int
    width: float
    ticks: tuple[str, ...]
    summary: str


class Strips(msgspec.Struct, frozen=True, kw_only=True, tag="strips"):
    """The time strips of all runs, one below the other."""

    rows: tuple[StripRow, ...]
    states: tuple[str, ...]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a bar: its name, value in words, share of the whole width, and palette index."""

    label: str
    value: str
    share: float
    color: int


class BarRow(msgspec.Struct, frozen=True, kw_only=True):
    """A bar made of parts."""

    label: str
    total: str
    segments: tuple[Segment, ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True, tag="bars"):
    """Horizontal bars, each divided into parts, all to one scale."""

    title: str
    rows: tuple[BarRow, ...]


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """A bin of a histogram.

    Args:
        label: What it counts.
        values: For each run its share in words.
        heights: For each run its height from 0 to 1.
        is_last: Whether nothing beyond it is allowed.
    """

    label: str
    values: tuple[str, ...]
    heights: tuple[float, ...]
    is_last: bool = False


class Histogram(msgspec.Struct, frozen=True, kw_only=True, tag="histogram"):
    """Upright bars by bin, the runs beside one another.

    Args:
        title: What is counted.
        x_label: What the bins are.
        y_label: What the height is.
        top: What the full height is, in words.
        bins: In order.
        runs: Names of the runs, if there are several.
        caption: What it says in words.
    """

    title: str
    x_label: str
    y_label: str
    top: str
    bins: tuple[Bin, ...]
    runs: tuple[tuple[str, int], ...] = ()
    caption: str = ""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles as positions from 0 to 1 on a common scale, and in words."""

    label: str
    p50: float
    p95: float
    p99: float
    words: tuple[str, str, str]
    color: int


class Ranges(msgspec.Struct, frozen=True, kw_only=True, tag="ranges"):
    """Percentiles side by side, on one scale from 0."""

    title: str
    unit: str
    top: str
    rows: tuple[Range, ...]


class Cell(msgspec.Struct, frozen=True):
    """A cell of a table; `share` draws a bar behind it."""

    text: str
    share: float | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """Rows of cells; the first one of each row names it."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """A sentence, for what is missing above all."""

    text: str


Part = Chart | Strips | Bars | Histogram | Ranges | Table | Note


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the page: its name in the navigation, a heading, what it tells, and its pictures."""

    anchor: str
    label: str
    title: str
    lead: str
    parts: tuple[Part, ...]


class RunTables(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of one run that charts draw, by table; `time` and `step` are in each."""

    name: str
    batches: dict[str, list[float | None]]
    evaluations: dict[str, list[float | None]]
    actors: dict[str, list[float | None]]


def kind_of(part: Part) -> str:
    """Return the name by which a template knows a part."""
    kind: Any = part.__struct_config__.tag
    return str(kind)
