from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from forebay.learner.fit.child import describe
from forebay.learner.fit.jobs import Job

JOB = Job({}, "cpu:2", ("apply",), {"fsdp": 2}, 2, 8, "full")
SIZES = SimpleNamespace(
    argument_size_in_bytes=10,
    output_size_in_bytes=4,
    alias_size_in_bytes=4,
    temp_size_in_bytes=7,
    generated_code_size_in_bytes=1,
)


class Unreadable:
    """A program that was compiled by a newer compiler: sizes are known, its text is not."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def memory_analysis(self) -> SimpleNamespace:
        return SIZES

    def as_text(self) -> str:
        raise self.error


def test_a_program_whose_text_cannot_be_read_still_tells_its_memory() -> None:
    said = "INTERNAL: RET_CHECK failure: async-update instruction should have 1 operands but sees 3"
    program = describe("apply", Unreadable(jax.errors.JaxRuntimeError(said)), JOB, 2.5)
    assert program.peak_bytes == 10 + 7 + 1
    assert program.collectives is None, "not known, which is not the same as none"
    assert (program.cycles, program.compile_s, program.refusal) == (0, 2.5, None)


def test_other_failures_are_not_taken_for_an_unreadable_text() -> None:
    with pytest.raises(OSError, match="disk"):
        describe("apply", Unreadable(OSError("disk")), JOB, 2.5)
