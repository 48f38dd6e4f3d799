"""The picture of a plan: busy by fleet size and staleness, as a small SVG file."""

from __future__ import annotations

from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from forebay.planner.plan import Cell, Plan

_LEFT, _TOP, _BOTTOM, _RIGHT = 130, 76, 64, 24
_CELL_WIDTH, _CELL_HEIGHT = 96, 44
_PALE: Final = (238, 243, 248)
_DEEP: Final = (31, 86, 140)
_INK, _LIGHT_INK, _FRAME = "#222222", "#ffffff", "#d1605e"
# From here on a cell is so dark that light letters are easier to read.
_DARK_BUSY: Final = 0.6


class _Grid(NamedTuple):
    """Rows of staleness, the highest at the top, and columns of fleet sizes."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def x(self, episodes: int) -> int:
        return _LEFT + self.columns.index(episodes) * _CELL_WIDTH

    def y(self, max_staleness: int) -> int:
        return _TOP + self.rows.index(max_staleness) * _CELL_HEIGHT

    @property
    def width(self) -> int:
        return _LEFT + len(self.columns) * _CELL_WIDTH + _RIGHT

    @property
    def height(self) -> int:
        return _TOP + len(self.rows) * _CELL_HEIGHT + _BOTTOM


def draw_plan(plan: Plan, wanted_busy: float) -> str:
    """Return a plan as the text of an SVG file.

    Every fleet that was simulated is a cell, darker where busier; the planned one is framed.

    Args:
        plan: The plan.
        wanted_busy: What was asked for; cells that reach it have a check mark.
    """
    grid = _Grid(
        tuple(sorted({cell.max_staleness for cell in plan.cells}, reverse=True)),
        tuple(sorted({cell.episodes_in_flight for cell in plan.cells})),
    )
    title = f"busy, % of the time; {plan.busy:.1%} planned, {wanted_busy:.0%} wanted"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {grid.width} {grid.height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{grid.width}" height="{grid.height}" fill="#ffffff"/>',
        _text(16, 24, title, anchor="start", size=15),
        _text(16, 46, "framed: the fleet that the plan asks for", anchor="start", color=_FRAME),
        *(part for cell in plan.cells for part in _cell(cell, grid, wanted_busy)),
        *_axes(grid),
    ]
    if plan.max_staleness in grid.rows and plan.episodes_in_flight in grid.columns:
        x, y = grid.x(plan.episodes_in_flight), grid.y(plan.max_staleness)
        parts.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{_CELL_WIDTH - 4}" height="{_CELL_HEIGHT - 4}" '
            f'fill="none" stroke="{_FRAME}" stroke-width="3"/>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _cell(cell: Cell, grid: _Grid, wanted_busy: float) -> list[str]:
    x, y = grid.x(cell.episodes_in_flight), grid.y(cell.max_staleness)
    reached = " ✓" if cell.busy >= wanted_busy else ""
    ink = _LIGHT_INK if cell.busy >= _DARK_BUSY else _INK
    return [
        f'<rect x="{x}" y="{y}" width="{_CELL_WIDTH - 2}" height="{_CELL_HEIGHT - 2}" '
        f'fill="{_shade(cell.busy)}"/>',
        _text(x + _CELL_WIDTH // 2, y + _CELL_HEIGHT // 2 + 4, f"{100 * cell.busy:.1f}{reached}", color=ink),
    ]


def _axes(grid: _Grid) -> list[str]:
    bottom = grid.height - _BOTTOM
    middle = (_TOP + bottom) // 2
    parts = [
        _text(_LEFT - 10, grid.y(row) + _CELL_HEIGHT // 2 + 4, str(row), anchor="end") for row in grid.rows
    ]
    parts += [_text(grid.x(column) + _CELL_WIDTH // 2, bottom + 18, str(column)) for column in grid.columns]
    parts.append(_text((_LEFT + grid.width - _RIGHT) // 2, bottom + 44, "episodes in flight"))
    parts.append(
        f'<text transform="translate(28 {middle}) rotate(-90)" text-anchor="middle" fill="{_INK}">'
        "max_staleness</text>"
    )
    return parts


def _shade(fraction: float) -> str:
    share = min(max(fraction, 0.0), 1.0)
    red, green, blue = (round(pale + share * (deep - pale)) for pale, deep in zip(_PALE, _DEEP, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(x: int, y: int, text: str, *, anchor: str = "middle", size: int = 13, color: str = _INK) -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{color}">{escape(text)}</text>'
