"""The chips that `forebay fit` knows, and topologies by name: `v5p:4x4x4`, `gpu:h100x8`, `cpu:8`.

References:
    Google Cloud, "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)", cloud.google.com/tpu/docs:
    peak bfloat16 compute, memory bandwidth, bidirectional interconnect bandwidth of a chip.
    Austin et al. 2025, How to Scale Your Model, part 2 (v4's bandwidth of a link; wraparound rings).
    NVIDIA, "H100 Tensor Core GPU", data sheet: dense bfloat16, SXM5, NVLink 4.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from forebay.errors import ConfigError

Platform = Literal["tpu", "gpu", "cpu"]
GIB: Final = 1 << 30
MAX_CHIPS: Final = 1024
# Along each of the first two dimensions of the network.
_HOST_CHIPS: Final = 2


@dataclass(frozen=True, slots=True)
class Chip:
    """What one kind of chip can do. Rates are peaks: nothing reaches all of them.

    Args:
        name: As in a topology's name.
        platform: Which compiler builds for it.
        flops_per_s: Dense bfloat16, whole chip.
        memory_bytes: What programs may use of the memory of one device. For TPUs this is what libtpu says.
        memory_bytes_per_s: Of a whole chip.
        link_bytes_per_s: Of one link to a neighbor, one way.
        clock_hz: Cycles of a core a second.
        num_dims: Dimensions of the network: chips have two neighbors in each. 0: all reach all at that rate.
        ring_multiple: A dimension is a ring if its length is a multiple of this, else a line.
        devices_per_chip: Devices that JAX sees of one chip.
        max_chips: Most that one network links, or that are sized here.
    """

    name: str
    platform: Platform
    flops_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    clock_hz: float
    num_dims: int
    ring_multiple: int = 1
    devices_per_chip: int = 1
    max_chips: int = MAX_CHIPS


CHIPS: Final = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 275e12, int(30.75 * GIB), 1.2e12, 45e9, 1.05e9, 3, 4),
        Chip("v5e", "tpu", 197e12, int(15.75 * GIB), 819e9, 50e9, 1.5e9, 2, 16, max_chips=256),
        Chip("v5p", "tpu", 459e12, int(95.73 * GIB), 2.765e12, 100e9, 1.75e9, 3, 4),
        Chip("v6e", "tpu", 918e12, int(31.24 * GIB), 1.638e12, 100e9, 1.75e9, 2, 16, max_chips=256),
        Chip("tpu7x", "tpu", 2307e12, int(94.74 * GIB), 7.38e12, 100e9, 2.2e9, 3, 4, 2),
        Chip("h100", "gpu", 989e12, 79 * GIB, 3.35e12, 450e9, 1.83e9, 0),
        Chip("cpu", "cpu", 1e11, 16 * GIB, 2e10, 1e10, 3e9, 0),
    )
}
_EXAMPLES: Final = "v4:4x4x4, v5e:16x16, v5p:4x4x4, v6e:16x16, tpu7x:4x4x4, gpu:h100x8, cpu:8"


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips and how they are wired.

    Args:
        name: As it was asked for.
        chip: What all of them are.
        dims: Chips along each dimension of the network.
    """

    name: str
    chip: Chip
    dims: tuple[int, ...]

    @property
    def num_chips(self) -> int:
        """Number of chips."""
        return math.prod(self.dims)

    @property
    def num_devices(self) -> int:
        """Number of devices that a mesh is made of."""
        return self.num_chips * self.chip.devices_per_chip

    @property
    def flops_per_s(self) -> float:
        """Peak of one device."""
        return self.chip.flops_per_s / self.chip.devices_per_chip

    @property
    def memory_bytes_per_s(self) -> float:
        """Memory bandwidth of one device."""
        return self.chip.memory_bytes_per_s / self.chip.devices_per_chip

    def dim_bytes_per_s(self, length: int) -> float:
        """Return what a device can send along one dimension: both ways if the dimension is a ring."""
        if not self.chip.num_dims:
            return self.chip.link_bytes_per_s
        directions = 2 if length % self.chip.ring_multiple == 0 else 1
        return directions * self.chip.link_bytes_per_s / self.chip.devices_per_chip


def parse_topology(name: str) -> Topology:
    """Read a topology's name.

    Raises:
        ConfigError: It names no known chip, or dimensions that the chip does not have.

    Example:
        >>> parse_topology("v5p:4x4x4").num_chips
        64
        >>> parse_topology("tpu7x:2x2x1").num_devices
        8
    """
    kind, _, rest = name.lower().partition(":")
    if kind == "gpu" and (match := re.fullmatch(r"([a-z]\w*?)x(\d+)", rest)):
        kind, rest = match[1], match[2]
    chip = CHIPS.get(kind)
    if chip is None:
        near = difflib.get_close_matches(kind, CHIPS, n=1)
        raise ConfigError(
            f"no such topology: {name}",
            limit=", ".join(CHIPS),
            remedy=f"Did you mean {near[0]}:...?" if near else f"For example: {_EXAMPLES}.",
        )
    dims = tuple(int(size) for size in rest.split("x")) if re.fullmatch(r"\d+(x\d+)*", rest) else ()
    wanted = chip.num_dims or 1
    if len(dims) != wanted or min(dims) < 1:
        form = "x".join("ABC"[:wanted]) if chip.num_dims else "N"
        raise ConfigError(
            f"a topology of {kind} chips is {kind}:{form}", got=name, remedy=f"For example: {_EXAMPLES}."
        )
    if math.prod(dims) > chip.max_chips:
        raise ConfigError("too many chips", got=f"{name} = {math.prod(dims)}", limit=chip.max_chips)
    if chip.platform == "tpu" and any(size % _HOST_CHIPS for size in dims[:2]):
        raise ConfigError(
            f"{kind} chips come in hosts of 2 x 2",
            got=name,
            limit="even numbers in the first two dimensions",
            remedy=f"For example: {_EXAMPLES}.",
        )
    return Topology(name, chip, dims)
