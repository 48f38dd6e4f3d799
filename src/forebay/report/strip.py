"""The learner's time strip: what it did when, as shares of a fixed number of columns."""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.report.history import History, Interval
from forebay.telemetry.spans import STATES, State

NUM_COLUMNS: Final = 360
# A line is written after the batch is trained and before its weights are published: in this order.
_ORDER: Final[tuple[State, ...]] = (
    "publishing",
    "checkpointing",
    "compiling",
    "starved",
    "packing",
    "computing",
    "other",
)
# From the bottom: what is useful first.
STACK: Final[tuple[State, ...]] = (
    "computing",
    "packing",
    "publishing",
    "checkpointing",
    "compiling",
    "other",
    "starved",
)
_HEIGHT: Final = 100


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """A learner's time.

    Args:
        begin_s: Wall clock at its left end.
        duration_s: From its left end to its right end.
        columns: Share of each column's time by state, in the order of `STATES`; what is missing from 1 is
            time in which no learner ran.
    """

    begin_s: float
    duration_s: float
    columns: tuple[tuple[float, ...], ...]


def build_strip(history: History, num_columns: int = NUM_COLUMNS) -> Strip | None:
    """Return the strip of a run; None before its first batch.

    Time whose batches were trained again after a crash is in it, for it passed. Within the interval of a line
    the states stand in the order in which a learner goes through them.
    """
    begin_s, end_s = history.begin_s, history.end_s
    if begin_s is None or end_s is None or end_s <= begin_s:
        return None
    width_s = (end_s - begin_s) / num_columns
    columns = [[0.0] * len(STATES) for _ in range(num_columns)]
    for interval in history.each_interval():
        _add(columns, interval, begin_s, width_s)
    shares = tuple(tuple(min(1.0, seconds / width_s) for seconds in column) for column in columns)
    return Strip(begin_s=begin_s, duration_s=end_s - begin_s, columns=shares)


def paths(strip: Strip) -> dict[State, str]:
    """Return an SVG path for each state that occurs; x ends at the number of columns, y at 100, the bottom.

    States are stacked, `computing` at the bottom.
    """
    drawn: dict[State, list[str]] = {state: [] for state in STACK}
    begun: dict[State, tuple[int, int, int]] = {}
    empty = (0.0,) * len(STATES)
    for x, column in enumerate((*strip.columns, empty)):
        level = 0.0
        for state in STACK:
            low, level = level, min(1.0, level + column[STATES.index(state)])
            box = (round(_HEIGHT * (1 - level)), round(_HEIGHT * (1 - low)))
            start = begun.get(state)
            if start is not None and start[1:] != box:
                drawn[state].append(_rectangle(start, x))
                del begun[state]
            if box[0] < box[1] and state not in begun:
                begun[state] = (x, *box)
    return {state: "".join(parts) for state, parts in drawn.items() if parts}


def _rectangle(start: tuple[int, int, int], stop_x: int) -> str:
    x, top, bottom = start
    return f"M{x} {top}H{stop_x}V{bottom}H{x}z"


def _add(columns: list[list[float]], interval: Interval, begin_s: float, width_s: float) -> None:
    """Add an interval's seconds to the columns that it overlaps."""
    at_s = interval.begin_s - begin_s
    for state in _ORDER:
        index = STATES.index(state)
        left_s = interval.seconds[index]
        while left_s > 1e-9:
            column = int(at_s / width_s)
            if not 0 <= column < len(columns):
                break
            # At least a hair, so that rounding at the border of a column never stands still.
            room_s = max((column + 1) * width_s - at_s, 1e-9 * width_s)
            part_s = min(left_s, room_s)
            columns[column][index] += part_s
            at_s += part_s
            left_s -= part_s
