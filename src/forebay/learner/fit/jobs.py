"""What the process that compiles is asked, and what it answers: JSON, one message a line."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

_NEEDED: Final = re.compile(r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT]?)")
_AVAILABLE: Final = re.compile(r"(?:available HBM \(|Used [\d.]+[KMGT]? of )([\d.]+)([KMGT]?)")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Job(msgspec.Struct, frozen=True):
    """Programs to compile.

    Attributes:
        model: The `config.json` object.
        topology: Where for, by name.
        programs: Of `accumulate`, `apply` and `decode`.
        mesh: Sizes of the mesh axes.
        rows: Rows of a micro-batch.
        length: Tokens of a row; of a slot's cache when decoding.
        remat: What the backward pass recomputes.
        num_slots: Sequences that are decoded at the same time.
        exchange_rounds: Trips of a loop that an exchange between experts takes as many of as it needs.
    """

    model: dict[str, Any]
    topology: str
    programs: tuple[str, ...]
    mesh: dict[str, int]
    rows: int
    length: int
    remat: str
    num_slots: int = 1
    exchange_rounds: int = 1

    def only(self, program: str) -> Job:
        """Return what one of the programs depends on: the optimizer's, for example, on no rows.

        Example:
            >>> job = Job({}, "v5e:4x4", ("accumulate", "apply"), {"fsdp": 16}, 32, 4096, "full")
            >>> job.only("apply") == msgspec.structs.replace(job, rows=64, remat="dots").only("apply")
            True
        """
        if program == "accumulate":
            return msgspec.structs.replace(self, programs=(program,), num_slots=1)
        alone = msgspec.structs.replace(self, programs=(program,), rows=0, remat="", exchange_rounds=1)
        if program == "decode":
            return msgspec.structs.replace(alone, mesh={})
        return msgspec.structs.replace(alone, length=0, num_slots=1)


class Sent(msgspec.Struct, frozen=True):
    """Collectives of one kind over one axis that a program runs; see `work.Collective`."""

    axis: str
    kind: str
    count: int
    bytes: int


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """What the process is at."""

    what: str


class Program(msgspec.Struct, frozen=True, tag="program"):
    """What the compiler says of a program, for one device.

    Attributes:
        name: Which one.
        compile_s: Seconds that it took.
        argument_bytes: Of what goes in.
        output_bytes: Of what comes out.
        alias_bytes: Of what comes out in the place of what went in.
        temporary_bytes: Of what lives while it runs.
        code_bytes: Of the program itself.
        collectives: What it sends; None if its text could not be read, as with a libtpu of another JAX.
        refusal: Why the compiler refused; the numbers are 0 then.
        cycles: What the compiler thinks that its operations take, one after the other, loops included; the
            network and kernels written by hand are not in it. 0 if the text does not say.
        kernel_s: Seconds that kernels written by hand take at the least, by what they say they do.
    """

    name: str
    compile_s: float
    argument_bytes: int = 0
    output_bytes: int = 0
    alias_bytes: int = 0
    temporary_bytes: int = 0
    code_bytes: int = 0
    collectives: tuple[Sent, ...] | None = ()
    refusal: str | None = None
    cycles: int = 0
    kernel_s: float = 0.0

    @property
    def peak_bytes(self) -> int:
        """What has to be there while it runs."""
        return (
            self.argument_bytes
            + self.output_bytes
            - self.alias_bytes
            + self.temporary_bytes
            + self.code_bytes
        )


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The process could not do its work."""

    what: str


Message = Phase | Program | Failure


class Exhausted(NamedTuple):
    """What a compiler wanted and had.

    Attributes:
        needed_bytes: What it wanted.
        available_bytes: What it had.
        is_whole: Whether arguments are in what it wanted; otherwise it is temporaries only.
    """

    needed_bytes: int
    available_bytes: int
    is_whole: bool


def exhausted(refusal: str) -> Exhausted | None:
    """Return what a compiler wanted and had, from its refusal; None if it does not say.

    Example:
        >>> found = exhausted("RESOURCE_EXHAUSTED: HLO temporaries (75.25G) exceeds available HBM (15.75G).")
        >>> found.needed_bytes, found.is_whole
        (80799072256, False)
    """
    needed, available = _NEEDED.search(refusal), _AVAILABLE.search(refusal)
    if needed is None or available is None:
        return None
    return Exhausted(_bytes(needed), _bytes(available), needed[0].startswith("Used"))


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])
