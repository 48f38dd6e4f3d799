"""The seam between what is measured and where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from forebay.telemetry.metrics import Value


class MetricLog(Protocol):
    """What measures write to."""

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one record.

        Args:
            step: Policy version that the values belong to.
            values: By name.
        """
        ...


class MetricSink(Protocol):
    """One place that metrics go to. A thread of its own calls it, so it may be slow, and it may fail."""

    def write(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Take one record.

        Args:
            step: Policy version that the values belong to.
            time_s: Wall clock.
            values: By name, as in `metrics.jsonl`.
        """
        ...

    def close(self) -> None:
        """Write what waits, and release everything."""
        ...


SinkOpener = Callable[[int], MetricSink]
"""Opens a sink, given the step of the first record: what it had from that step on is about to come again."""


def chart_values(values: Mapping[str, Value]) -> dict[str, float]:
    """Return the numbers among some values, under names that charts are grouped by.

    The first dot becomes a slash: TensorBoard and W&B put what has the same beginning into one section.

    Example:
        >>> chart_values({"busy": 0.5, "life.buffer_s": 2, "groups": "g1 g2", "reward": None})
        {'busy': 0.5, 'life/buffer_s': 2.0}
    """
    return {
        name.replace(".", "/", 1): float(value)
        for name, value in values.items()
        if isinstance(value, int | float)
    }
