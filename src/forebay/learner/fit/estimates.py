"""What a compiled program's text says of its own time: the compiler's cycles, and kernels' operations.

The compiler for TPUs writes into its text how many cycles it thinks that an operation takes, reading and
writing memory included. Operations of one computation run one after the other. Not in it: transfers between
devices, and kernels written by hand, which say how many operations they do instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from forebay.learner.fit.hlo import called_by, loop_of, split_program

# The largest number of 64 bits stands for: not known.
_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d{1,15})"')
_KERNEL: Final = re.compile(r'custom_call_target="tpu_custom_call".*"cost_estimate":\{"flops":"(\d+)"')


class Estimate(NamedTuple):
    """What a program takes, loops multiplied by their trips; of branches, the longest counts.

    Attributes:
        cycles: Of all that the compiler estimates.
        kernel_flops: Floating-point operations of kernels written by hand.
    """

    cycles: int
    kernel_flops: int


def read_estimate(text: str) -> Estimate:
    r"""Return what a compiled program takes by its own text; zeros where it does not say.

    Example:
        >>> text = 'ENTRY %main () -> f32[] {\n  %a = f32[] add(), backend_config={"estimated_cycles":"7"}'
        >>> read_estimate(text).cycles
        7
    """
    computations, entry = split_program(text)
    return _total(entry, computations)


def _total(name: str, computations: Mapping[str, Sequence[str]]) -> Estimate:
    cycles = flops = 0
    for line in computations.get(name, ()):
        own, kernel = _CYCLES.search(line), _KERNEL.search(line)
        cycles += int(own[1]) if own else 0
        flops += int(kernel[1]) if kernel else 0
        loop = loop_of(line, computations)
        # A fusion has its own number: what it is made of runs together.
        inner = [] if " fusion(" in line else [loop[0]] if loop else called_by(line)
        parts = [_total(called, computations) for called in inner]
        if parts:
            longest, times = max(parts), loop[1] if loop else 1
            cycles += times * longest.cycles
            flops += times * longest.kernel_flops
    return Estimate(cycles, flops)
