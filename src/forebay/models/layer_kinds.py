"""What blocks of one model differ in, and how a stack of them is cut into runs that repeat.

A run is compiled once and looped over, however many blocks it has: Gemma 3's 62 blocks are ten times (five
local, one global), then two local ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What sets one block apart from others of its model; all of it is fixed when a program is compiled.

    Args:
        window: Number of latest tokens of its sequence that a token sees, itself included; None: all.
        rope_theta: Base of this block's rotary wavelengths, without a stretch; None: as the model's.
    """

    window: int | None = None
    rope_theta: float | None = None


class LayerRun(NamedTuple):
    """Blocks that follow one another and repeat.

    Attributes:
        start: The first of them.
        pattern: Kinds of one period.
        repeats: How often the pattern comes.
    """

    start: int
    pattern: tuple[LayerKind, ...]
    repeats: int

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.pattern) * self.repeats


def shortest_pattern(kinds: Sequence[LayerKind]) -> tuple[LayerKind, ...]:
    """Return the shortest pattern that gives these kinds when it is repeated, the last time maybe in part.

    Args:
        kinds: Of every block, in order; at least one.
    """
    sizes = (size for size in range(1, len(kinds)) if kinds[size:] == kinds[:-size])
    return tuple(kinds[: next(sizes, len(kinds))])


def layer_runs(kinds: Sequence[LayerKind]) -> tuple[LayerRun, ...]:
    """Cut a stack into runs, each as long as can be; of two equally long ones, the shorter pattern.

    Args:
        kinds: Of every block, in order.

    Example:
        >>> local, whole = LayerKind(window=8), LayerKind()
        >>> [(len(run.pattern), run.repeats) for run in layer_runs([local, local, whole] * 4 + [local])]
        [(3, 4), (1, 1)]
    """
    runs: list[LayerRun] = []
    start = 0
    while start < len(kinds):
        rest = kinds[start:]
        counts = ((_repeats(rest, size), size) for size in range(1, len(rest) // 2 + 1))
        repeated = (count for count in counts if count[0] > 1)
        repeats, size = max(repeated, key=lambda count: (count[0] * count[1], -count[1]), default=(1, 1))
        runs.append(LayerRun(start, tuple(rest[:size]), repeats))
        start += runs[-1].num_layers
    return tuple(runs)


def _repeats(kinds: Sequence[LayerKind], size: int) -> int:
    same = 0
    while same + size < len(kinds) and kinds[same] == kinds[same + size]:
        same += 1
    return 1 + same // size
