"""What a compiled program's text says of its own time: the compiler's cycles, and kernels' work.

The compiler for TPUs writes into its text how many cycles it thinks that an operation takes, reading and
writing memory included. Operations of one computation run one after the other. Not in it: transfers between
devices, gathers and scatters that a core of their own does, and kernels written by hand, which say how many
operations they do and how many bytes they move instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from forebay.learner.fit.hlo import called_by, loop_of, split_program

# The largest number of 64 bits stands for: not known.
_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d{1,15})"')
_KERNEL: Final = re.compile(r'custom_call_target="tpu_custom_call".*"cost_estimate":\{([^}]*)\}')
_WORK: Final = re.compile(r'"(flops|bytes_accessed)":"(\d+)"')


class Estimate(NamedTuple):
    """What a program takes, loops multiplied by their trips; of branches, the longest counts.

    Attributes:
        cycles: Of all that the compiler estimates.
        kernel_s: Seconds of kernels written by hand: each as long as its operations or its bytes take.
    """

    cycles: int
    kernel_s: float


class Rates(NamedTuple):
    """What a device can do in a second.

    Attributes:
        flops: Floating-point operations.
        bytes: Read from and written to memory.
    """

    flops: float
    bytes: float


def read_estimate(text: str, rates: Rates, unknown_trips: int = 1) -> Estimate:
    r"""Return what a compiled program takes by its own text; zeros where it does not say.

    Args:
        text: The compiled program.
        rates: Of the device, for kernels.
        unknown_trips: Trips of a loop where the text does not say: those of an exchange between experts.

    Example:
        >>> text = 'ENTRY %main () -> f32[] {\n  %a = f32[] add(), backend_config={"estimated_cycles":"7"}'
        >>> read_estimate(text, Rates(1e12, 1e12)).cycles
        7
    """
    computations, entry = split_program(text)
    return _total(entry, computations, rates, unknown_trips)


def _total(
    name: str, computations: Mapping[str, Sequence[str]], rates: Rates, unknown_trips: int
) -> Estimate:
    cycles, kernel_s = 0, 0.0
    for line in computations.get(name, ()):
        own, kernel = _CYCLES.search(line), _KERNEL.search(line)
        cycles += int(own[1]) if own else 0
        kernel_s += _kernel_s(kernel[1], rates) if kernel else 0.0
        loop = loop_of(line, computations, unknown_trips)
        # A fusion has its own number: what it is made of runs together.
        inner = [] if " fusion(" in line else [loop[0]] if loop else called_by(line)
        parts = [_total(called, computations, rates, unknown_trips) for called in inner]
        if parts:
            longest, times = max(parts), loop[1] if loop else 1
            cycles += times * longest.cycles
            kernel_s += times * longest.kernel_s
    return Estimate(cycles, kernel_s)


def _kernel_s(said: str, rates: Rates) -> float:
    work = {name: int(number) for name, number in _WORK.findall(said)}
    return max(work.get("flops", 0) / rates.flops, work.get("bytes_accessed", 0) / rates.bytes)
