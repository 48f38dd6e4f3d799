"""How fast a step could be at most: the slowest of computing, reading memory, and each network axis.

Assumptions, printed with every result: each unit runs at its published peak, all of them overlap perfectly, a
mesh axis has the dimensions of the network that its size is a product of (one dimension where it is not), a
dimension is used both ways where it is a ring, and every row is one sequence. A real step takes longer.

References:
    Williams, Waterman and Patterson 2009, Roofline: an insightful visual performance model.
    Austin et al. 2025, How to Scale Your Model, parts 1 and 3.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

from forebay.learner.fit.chips import Topology
from forebay.learner.fit.plan import AXES, Plan
from forebay.learner.fit.work import Work
from forebay.models.settings import MeshSettings

ASSUMPTIONS: Final = (
    "chips reach their published peaks, in bfloat16",
    "computing, memory and network overlap perfectly",
    "a mesh axis has whole dimensions of the network if its size is a product of some, else one link",
    "every row is one sequence; packed rows attend to less",
)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Least seconds of a step, by what is waited for.

    Args:
        compute_s: Of matrix products and attention.
        memory_s: Of reading and writing memory.
        network_s: By mesh axis, of collectives.
    """

    compute_s: float
    memory_s: float
    network_s: tuple[tuple[str, float], ...]

    @property
    def step_s(self) -> float:
        """Least seconds of a step."""
        return max(self.compute_s, self.memory_s, *(seconds for _, seconds in self.network_s))

    @property
    def bound(self) -> str:
        """What a step waits for: `compute`, `memory`, or a mesh axis."""
        by_name = {"compute": self.compute_s, "memory": self.memory_s, **dict(self.network_s)}
        return max(by_name, key=lambda name: by_name[name])


def roofline(work: Work, plan: Plan, topology: Topology) -> Roofline:
    """Return the least time of a step on a topology."""
    rates = axis_bytes_per_s(plan.mesh, topology)
    seconds: dict[str, float] = {}
    for one in work.collectives:
        # A collective over several axes is as slow as the slowest of them.
        rate = min(rates[axis] for axis in one.axis.split("+"))
        seconds[one.axis] = seconds.get(one.axis, 0.0) + one.bytes / rate
    return Roofline(
        compute_s=work.device_flops / topology.flops_per_s,
        memory_s=work.memory_bytes / topology.memory_bytes_per_s,
        network_s=tuple(seconds.items()),
    )


def axis_bytes_per_s(mesh: MeshSettings, topology: Topology) -> dict[str, float]:
    """Return what a device can send over each mesh axis.

    Axes take dimensions of the network in the order that a mesh is laid out: large axes first take whole
    dimensions whose product they are; the rest share what is left.

    Example:
        >>> from forebay.learner.fit.chips import parse_topology
        >>> axis_bytes_per_s(MeshSettings(fsdp=16, tensor=4), parse_topology("v5p:4x4x4"))
        {'fsdp': 400000000000.0, 'tensor': 200000000000.0}
    """
    sizes = {name: getattr(mesh, name) for name in AXES if getattr(mesh, name) > 1}
    if not topology.chip.num_dims:
        return {name: topology.dim_bytes_per_s(size) for name, size in sizes.items()}
    free = [size for size in topology.dims if size > 1]
    rates: dict[str, float] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        taken = _dims_of(sizes[name], free)
        for size in taken:
            free.remove(size)
        rates[name] = sum(topology.dim_bytes_per_s(size) for size in taken)
    # A part of a dimension is a line.
    shared = topology.chip.link_bytes_per_s / topology.chip.devices_per_chip
    return {name: rates[name] or shared for name in sizes}


def _dims_of(size: int, free: list[int]) -> tuple[int, ...]:
    for count in range(1, len(free) + 1):
        for dims in itertools.combinations(free, count):
            if math.prod(dims) == size:
                return dims
    return ()
