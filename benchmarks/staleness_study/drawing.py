"""Line charts as small SVG files, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 790, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 240, 36, 48
_ENTRY = 18  # of the legend
_COLORS: Final = (
    "#4878a8", "#d1605e", "#5a9e57", "#b07aa1", "#e49444", "#6f6f6f",
    "#85b6b2", "#a87c5f", "#d7a6c8", "#9c9c3c", "#1f3f5f",
)  # fmt: skip


class Point(NamedTuple):
    """A point, with the ends of its error bar if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """A line of a chart: its name and its points, by ascending x."""

    label: str
    points: tuple[Point, ...]


class Chart(NamedTuple):
    """A chart.

    Attributes:
        title: What it shows.
        x_label: What lies along the horizontal axis.
        y_label: What lies along the vertical axis.
        series: Its lines.
        band: A range of y that is shaded, and what it means; or None.
        even: Whether the x values that occur are placed evenly, as categories.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    band: tuple[float, float, str] | None = None
    even: bool = False


class _Frame:
    """Where values lie on the page."""

    def __init__(self, chart: Chart) -> None:
        points = [point for series in chart.series for point in series.points]
        self.ticks_x = sorted({point.x for point in points}) if chart.even else _ticks([p.x for p in points])
        self._even = chart.even
        ys = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
        self.ticks_y = _ticks([*ys, *(chart.band[:2] if chart.band else ())])

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        if self._even:
            share = (self.ticks_x.index(value) + 0.5) / len(self.ticks_x)
        else:
            share = (value - self.ticks_x[0]) / (self.ticks_x[-1] - self.ticks_x[0])
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        share = (value - self.ticks_y[0]) / (self.ticks_y[-1] - self.ticks_y[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def draw(chart: Chart) -> str:
    """Return a chart as the text of an SVG file."""
    frame = _Frame(chart)
    height = max(_HEIGHT, _TOP + _ENTRY * (len(chart.series) + 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 22, chart.title, size=14),
        *_axes(chart, frame),
    ]
    for number, series in enumerate(chart.series):
        # Side by side where they share an x, so that error bars can be told apart.
        shift = 5.0 * (number - (len(chart.series) - 1) / 2.0) if chart.even else 0.0
        parts += _line(series, frame, number, shift)
        y = _TOP + 12 + _ENTRY * number
        x = _WIDTH - _RIGHT + 14
        paint = f'stroke="{_color(number)}" fill="{_fill(number)}"'
        parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="5" {paint}/>')
        parts.append(_text(x + 20, y - 2, series.label))
    return "\n".join([*parts, "</svg>", ""])


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _fill(number: int) -> str:
    """Return the color of a marker; those beyond the colors there are have hollow ones."""
    return _color(number) if number < len(_COLORS) else "#ffffff"


def _axes(chart: Chart, frame: _Frame) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    if chart.band is not None:
        low, high, meaning = chart.band
        top = frame.y(high)
        parts.append(
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{right - _LEFT}" height="{frame.y(low) - top:.1f}" '
            'fill="#e8eef4"/>'
        )
        # Above the band, clear of the highest grid line; else below it.
        below = top - 20 < _TOP
        parts.append(_text(_LEFT + 6, frame.y(low) + 14 if below else top - 5, meaning, color="#58708a"))
    for value in frame.ticks_y:
        y = frame.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    parts += [_text(frame.x(value), bottom + 18, f"{value:g}", anchor="middle") for value in frame.ticks_x]
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 10, chart.x_label, anchor="middle"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle" fill="#333333">'
        f"{escape(chart.y_label)}</text>"
    )
    return parts


def _line(series: Series, frame: _Frame, number: int, shift: float) -> list[str]:
    color, fill = _color(number), _fill(number)
    places = [(frame.x(point.x) + shift, frame.y(point.y)) for point in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    for (x, y), point in zip(places, series.points, strict=True):
        if point.low is not None and point.high is not None:
            ends = f'y1="{frame.y(point.low):.1f}" y2="{frame.y(point.high):.1f}"'
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{color}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" stroke="{color}" fill="{fill}"/>')
    return parts


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#333333"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">'
        f"{escape(text)}</text>"
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round values that span some values, four to nine of them."""
    low, high = min(values), max(values)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, last + 1)]
