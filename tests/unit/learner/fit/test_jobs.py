from __future__ import annotations

import pytest

from forebay.learner.fit.jobs import Program, exhausted

GIB = 1 << 30


@pytest.mark.parametrize(
    ("refusal", "numbers"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
            "required for HLO temporaries (75.25G) exceeds available HBM (15.75G). HLO module: jit_step.",
            (int(75.25 * GIB), int(15.75 * GIB), False),
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
            "Used 82.50G of 15.75G hbm. Exceeded hbm capacity by 66.75G.",
            (int(82.5 * GIB), int(15.75 * GIB), True),
        ),
        ("INTERNAL: something else", None),
    ],
)
def test_what_a_compiler_wanted_is_read_from_its_refusal(
    refusal: str, numbers: tuple[int, int, bool] | None
) -> None:
    assert exhausted(refusal) == numbers


def test_what_comes_out_in_the_place_of_what_went_in_counts_once() -> None:
    program = Program("apply", 1.0, 100, 90, 80, 7, 3)
    assert program.peak_bytes == 100 + 10 + 7 + 3
