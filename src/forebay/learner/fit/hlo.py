"""Collectives in the text of a compiled program, with how often they run and what they send.

A program is a list of computations; loops, branches and fusions call others. A collective inside a loop runs
as often as the loop does. TPU programs cut an asynchronous collective into several fused pieces that all name
it; pieces of one chain in one computation are one collective.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.learner.fit.work import Collective

_KINDS: Final = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
_OPERATION: Final = re.compile(
    rf"= (?P<type>.*?) (?P<kind>{'|'.join((*_KINDS, 'ragged-all-to-all'))})(?P<start>-start)?\("
)
_HEADER: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .* \{$")
_ARRAY: Final = re.compile(r"\b(pred|[a-z]+(\d+)[a-z0-9]*)\[([\d,]*)\]")
_CALLS: Final = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES: Final = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_LOOP: Final = re.compile(r" while\(.*\bcondition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT: Final = re.compile(r"%?([\w.\-]+) = [su]\d+\[\]\S* constant\((\d+)\)")
_LESS: Final = re.compile(r"^\s*ROOT .* compare\((.*?)\), direction=LT")
_OPERAND: Final = re.compile(r"%([\w.\-]+)")
_GROUPS: Final = re.compile(
    r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\] \{.*?\})"
)
_MESH_AXIS: Final = re.compile(r"'(\w+)'=(\d+)")
_PAIRS: Final = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")
_CHAIN: Final = re.compile(r'chain_id="(\d+)"')
# A sum of which each device keeps its part only is written as a whole sum and a slice, fused.
_SCATTERING: Final = "all-reduce-scatter"
_CHANNEL: Final = re.compile(r"channel_id=(\d+)")


@dataclass(frozen=True, slots=True)
class _Found:
    """One collective: its kind, the devices that take part together, and what each of them sends."""

    kind: str
    group: tuple[int, ...]
    bytes: int


def read_collectives(
    text: str, mesh_sizes: Mapping[str, int], unknown_trips: int = 1
) -> tuple[Collective, ...]:
    """Return the collectives that a program runs, by kind and mesh axis.

    Args:
        text: The compiled program.
        mesh_sizes: Sizes of the mesh axes, in the order of the mesh: device ids in the text count in it.
        unknown_trips: Trips of a loop where the text does not say: those of an exchange between experts.

    Returns:
        Counts and bytes that one device sends, loops multiplied by their trips.
    """
    computations, entry = split_program(text)
    counts: Counter[tuple[str, str]] = Counter()
    sent: Counter[tuple[str, str]] = Counter()
    for found, times in _walk(entry, computations, 1, unknown_trips):
        if len(found.group) < 2:
            continue
        key = _axes_of(found.group, mesh_sizes), found.kind
        counts[key] += times
        sent[key] += times * found.bytes
    return tuple(
        Collective(axis, kind, counts[axis, kind], sent[axis, kind]) for axis, kind in sorted(counts)
    )


def split_program(text: str) -> tuple[dict[str, list[str]], str]:
    """Cut a program into its computations; return their lines by name, and which one is the entry."""
    computations: dict[str, list[str]] = {}
    current: list[str] = []
    entry = ""
    for line in text.splitlines():
        header = None if line.startswith(" ") else _HEADER.match(line)
        if header is not None:
            current = computations.setdefault(header["name"], [])
            entry = header["name"] if header["entry"] else entry
        else:
            current.append(line)
    return computations, entry


def _walk(
    name: str, computations: Mapping[str, Sequence[str]], times: int, unknown_trips: int
) -> Iterator[tuple[_Found, int]]:
    """Yield what a computation runs, itself or by calling others, and how often."""
    pieces: set[tuple[str, str]] = set()
    for line in computations.get(name, ()):
        loop = loop_of(line, computations, unknown_trips)
        found = _collective(line)
        if loop is not None:
            yield from _walk(loop[0], computations, times * loop[1], unknown_trips)
        elif found is not None:
            yield found, times
        elif " fusion(" in line:
            for part, piece in _fused(line, computations):
                fused = _collective(piece, scatters=part.startswith(_SCATTERING))
                if fused is not None and _identity(piece) not in pieces:
                    pieces.add(_identity(piece))
                    yield fused, times
        else:
            for called in called_by(line):
                yield from _walk(called, computations, times, unknown_trips)


def _fused(line: str, computations: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield what a fusion is made of, with the name of the computation that it stands in."""
    for called in _CALLS.findall(line):
        for piece in computations.get(called, ()):
            yield called, piece
            if " fusion(" in piece:
                yield from _fused(piece, computations)


def loop_of(
    line: str, computations: Mapping[str, Sequence[str]], unknown_trips: int
) -> tuple[str, int] | None:
    """Return which computation a loop repeats, and how often; None if the line is no loop."""
    loop = _LOOP.search(line)
    return None if loop is None else (loop[2], _trips(line, computations.get(loop[1], ()), unknown_trips))


def called_by(line: str) -> list[str]:
    """Return the computations that a line calls, branches among them."""
    if " async-done(" in line or " async-update(" in line:
        return []
    branches = _BRANCHES.search(line)
    names = [name.strip().lstrip("%") for name in branches[1].split(",")] if branches else []
    return names + _CALLS.findall(line)


def _trips(loop: str, condition: Sequence[str], unknown: int) -> int:
    """Return how often a loop runs: what the compiler says, else the bound that its counter stays below."""
    known = _TRIPS.search(loop)
    if known is not None:
        return int(known[1])
    constants = {match[1]: match[2] for line in condition if (match := _CONSTANT.search(line))}
    for line in condition:
        less = _LESS.match(line)
        if less is not None:
            bounds = [int(constants[name]) for name in _OPERAND.findall(less[1]) if name in constants]
            return bounds[0] if bounds else unknown
    return unknown


def _collective(line: str, *, scatters: bool = False) -> _Found | None:
    operation = _OPERATION.search(line)
    if operation is None:
        return None
    kind = operation["kind"].removeprefix("ragged-")
    if kind == "collective-permute":
        pair = _PAIRS.search(line)
        group: tuple[int, ...] = (int(pair[1]), int(pair[2])) if pair else ()
    else:
        group = _first_group(line)
    sent = _sent(kind, operation, len(group))
    if scatters and kind == "all-reduce":
        return _Found("reduce-scatter", group, sent // 2)
    return _Found(kind, group, sent)


def _sent(kind: str, operation: re.Match[str], size: int) -> int:
    """Return what a device sends, on a ring, for the result that an operation has."""
    sizes = [_num_bytes(match) for match in _ARRAY.finditer(operation["type"])]
    result = sum(sizes)
    if operation["start"]:
        # The result of a start is the operand and the result, and maybe what the device signals by.
        result = sizes[0] if kind == "collective-permute" else max(sizes, default=0)
    if size < 2:
        return 0
    share = (size - 1) / size
    return int(
        {
            "all-gather": result * share,
            "reduce-scatter": result * (size - 1),
            "all-reduce": 2 * result * share,
            "all-to-all": result * share,
            "collective-permute": result,
        }[kind]
    )


def _num_bytes(array: re.Match[str]) -> int:
    bits = int(array[2]) if array[2] else 8
    return math.prod(int(size) for size in array[3].split(",") if size) * max(bits, 8) // 8


def _identity(line: str) -> tuple[str, str]:
    """Return what the pieces of one asynchronous collective share."""
    chain, channel = _CHAIN.search(line), _CHANNEL.search(line)
    return (chain[1] if chain else line.split("=")[0], channel[1] if channel else "")


def _first_group(line: str) -> tuple[int, ...]:
    """Return the first of the groups of devices that work together."""
    groups = _GROUPS.search(line)
    if groups is None:
        return ()
    if groups[1].startswith("{{"):
        return tuple(int(device) for device in groups[1][2:].split("}")[0].split(",") if device)
    return _mesh_group(groups[1]) if groups[1].startswith("mesh") else _iota_group(groups[1])


def _mesh_group(text: str) -> tuple[int, ...]:
    """Return the first group of some axes of a mesh: `mesh['axis_0'=2,'axis_1'=2] {'axis_1'}`."""
    shape, _, named = text.partition("] ")
    group, stride = [0], 1
    for name, size in reversed(_MESH_AXIS.findall(shape)):
        if f"'{name}'" in named:
            group = [device + stride * index for index in range(int(size)) for device in group]
        stride *= int(size)
    return tuple(group)


def _iota_group(text: str) -> tuple[int, ...]:
    """Return the first row of groups that are written as a transposed range: `[2,4]<=[4,2]T(1,0)`."""
    shape_text, _, source = text.partition("<=")
    size = int(shape_text.strip("[]").split(",")[-1])
    dims_text, _, order_text = source.partition("T")
    dims = [int(dim) for dim in dims_text.strip("[]").split(",")]
    order = (
        [int(axis) for axis in order_text.strip("()").split(",")] if order_text else list(range(len(dims)))
    )
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    shape = [dims[axis] for axis in order]
    group = []
    for index in range(size):
        rest, device = index, 0
        for length, axis in zip(reversed(shape), reversed(order), strict=True):
            rest, digit = divmod(rest, length)
            device += digit * strides[axis]
        group.append(device)
    return tuple(group)


def _axes_of(group: Sequence[int], mesh_sizes: Mapping[str, int]) -> str:
    """Return which mesh axes the devices of a group differ in."""
    differing = []
    stride = math.prod(mesh_sizes.values())
    for axis, size in mesh_sizes.items():
        stride //= size
        if len({device // stride % size for device in group}) > 1:
            differing.append(axis)
    return "+".join(differing) or "none"
