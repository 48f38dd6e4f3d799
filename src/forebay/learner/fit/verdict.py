"""Whether a plan fits: by arithmetic, and by what the compiler said.

The optimizer's moments are no argument of the program that computes gradients, but they are there while it
runs: what it needs is added to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from forebay.learner.fit.chips import GIB, Topology
from forebay.learner.fit.jobs import Program, exhausted
from forebay.learner.fit.memory import Memory
from forebay.learner.fit.work import Collective

HEADROOM: Final = 0.1
# Letters of a compiler's message that are repeated.
_SAID: Final = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a plan's memory.

    Args:
        source: Whose word it is.
        memory: Bytes of one device.
        limit_bytes: What one device has.
        collectives: Of a step, by the same source; None if it did not say.
        compile_s: Seconds that the compiler took.
        refusal: What the compiler said when it refused.
        computing_s: Seconds that the compiler thinks a step computes; None if it did not say.
    """

    source: Literal["compiler", "analytic"]
    memory: Memory
    limit_bytes: int
    collectives: tuple[Collective, ...] | None = None
    compile_s: float = 0.0
    refusal: str | None = None
    computing_s: float | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits with a tenth of the memory free."""
        return self.refusal is None and self.memory.peak <= (1 - HEADROOM) * self.limit_bytes

    def explain(self) -> str:
        """Return the arithmetic in words."""
        memory = self.memory
        parts = ", ".join(
            f"{name} {_gib(size)}"
            for name, size in (
                ("parameters", memory.parameters),
                ("optimizer", memory.optimizer),
                ("gradients", memory.gradients),
                ("activations", memory.activations),
                ("temporaries", memory.temporary),
            )
        )
        said = "" if self.refusal is None else f"; the compiler says: {self.refusal.splitlines()[0][:_SAID]}"
        return f"needs {_gib(memory.peak)} of {_gib(self.limit_bytes)} GiB per device: {parts}{said}"


def by_arithmetic(memory: Memory, topology: Topology, collectives: tuple[Collective, ...]) -> Verdict:
    """Return what arithmetic says."""
    return Verdict("analytic", memory, topology.chip.memory_bytes, collectives)


def by_compiler(
    estimate: Memory, programs: Mapping[str, Program], topology: Topology, micro_batches: int
) -> Verdict:
    """Return what the compiler says.

    Args:
        estimate: The same by arithmetic, which is exact for what stays between steps. What the forward pass
            keeps is taken from it too, since a compiler says only what all temporaries need together.
        programs: `accumulate` and `apply`.
        topology: Where they run.
        micro_batches: How often the first one runs in a step.
    """
    accumulate, apply = programs["accumulate"], programs["apply"]
    refusal = accumulate.refusal or apply.refusal
    peak = max(
        needed_bytes(accumulate, estimate.parameters + estimate.gradients) + estimate.optimizer,
        needed_bytes(apply, estimate.resident),
    )
    moving = max(0, peak - estimate.resident)
    activations = min(estimate.activations, moving)
    memory = Memory(
        parameters=estimate.parameters,
        optimizer=estimate.optimizer,
        gradients=estimate.gradients,
        activations=activations,
        temporary=moving - activations,
    )
    return Verdict(
        "compiler",
        memory,
        topology.chip.memory_bytes,
        _of_step(accumulate, apply, micro_batches),
        accumulate.compile_s + apply.compile_s,
        refusal,
        _computing_s(accumulate, apply, topology, micro_batches),
    )


def needed_bytes(program: Program, argument_bytes: int) -> int:
    """Return what a program needs while it runs, as far as the compiler says.

    Args:
        program: One that was compiled, or refused.
        argument_bytes: Of what goes in; a refusal may speak of temporaries only.
    """
    if program.refusal is None:
        return program.peak_bytes
    wanted = exhausted(program.refusal)
    if wanted is None:
        return argument_bytes
    return wanted.needed_bytes + (0 if wanted.is_whole else argument_bytes)


def _of_step(accumulate: Program, apply: Program, micro_batches: int) -> tuple[Collective, ...] | None:
    if accumulate.refusal or accumulate.collectives is None or apply.collectives is None:
        return None
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for program, times in ((accumulate, micro_batches), (apply, 1)):
        for one in program.collectives or ():
            count, size = counts.get((one.axis, one.kind), (0, 0))
            counts[one.axis, one.kind] = count + times * one.count, size + times * one.bytes
    return tuple(Collective(*key, *counts[key]) for key in sorted(counts))


def _computing_s(accumulate: Program, apply: Program, topology: Topology, micro_batches: int) -> float | None:
    """Return the compiler's cycles in seconds, and those of kernels written by hand."""
    if not accumulate.cycles or not apply.cycles:
        return None
    cycles = micro_batches * accumulate.cycles + apply.cycles
    kernels_s = micro_batches * accumulate.kernel_s + apply.kernel_s
    return cycles / topology.chip.clock_hz + kernels_s


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
