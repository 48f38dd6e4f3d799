from __future__ import annotations

from forebay.learner.fit.chips import GIB, parse_topology
from forebay.learner.fit.jobs import Program, Sent
from forebay.learner.fit.memory import Memory
from forebay.learner.fit.verdict import by_compiler
from forebay.learner.fit.work import Collective

V5E = parse_topology("v5e:2x2")
STATE = Memory(2 * GIB, 4 * GIB, 2 * GIB, 3 * GIB, 1 * GIB)


def _programs(temporary: int, refusal: str | None = None) -> dict[str, Program]:
    sent = (Sent("fsdp", "all-gather", 5, 700),)
    accumulate = Program("accumulate", 10.0, 4 * GIB, 2 * GIB, 2 * GIB, temporary, 0, sent, refusal)
    apply = Program("apply", 5.0, 8 * GIB, 8 * GIB, 8 * GIB, GIB, 0, (Sent("fsdp", "all-gather", 1, 9),))
    return {"accumulate": accumulate, "apply": apply}


def test_moments_of_the_optimizer_are_there_while_gradients_are_computed() -> None:
    verdict = by_compiler(STATE, _programs(5 * GIB), V5E, 1)
    # Arguments 4, temporaries 5, and 4 of moments that are no argument.
    assert verdict.memory.peak == 13 * GIB
    assert verdict.memory.resident == 8 * GIB
    assert (verdict.memory.activations, verdict.memory.temporary) == (3 * GIB, 2 * GIB)
    assert verdict.fits, "13 of 15.75, and 14.2 may be used"
    assert verdict.compile_s == 15.0


def test_less_than_a_tenth_free_does_not_fit() -> None:
    assert not by_compiler(STATE, _programs(int(6.5 * GIB)), V5E, 1).fits


def test_the_larger_of_the_two_programs_counts() -> None:
    verdict = by_compiler(STATE, _programs(0), V5E, 1)
    assert verdict.memory.peak == 9 * GIB


def test_collectives_of_a_step_repeat_with_its_micro_batches() -> None:
    found = by_compiler(STATE, _programs(GIB), V5E, 3).collectives
    assert found == (Collective("fsdp", "all-gather", 16, 2109),)


def test_the_compilers_cycles_become_seconds_and_kernels_add_theirs() -> None:
    programs = {
        "accumulate": Program("accumulate", 1.0, cycles=3_000_000_000, kernel_s=1.0),
        "apply": Program("apply", 1.0, cycles=1_500_000_000),
    }
    # At 1.5 GHz: two micro-batches of 2 + 1 seconds, and one of the optimizer.
    assert by_compiler(STATE, programs, V5E, 2).computing_s == 7.0
    assert by_compiler(STATE, _programs(GIB), V5E, 2).computing_s is None, "it did not say"


def test_a_refusal_is_turned_into_arithmetic() -> None:
    refusal = "RESOURCE_EXHAUSTED: HLO temporaries (75.25G) exceeds available HBM (15.75G)."
    verdict = by_compiler(STATE, _programs(0, refusal), V5E, 1)
    assert not verdict.fits
    assert verdict.memory.peak == int(75.25 * GIB) + 8 * GIB, "and the state that the message leaves out"
    assert verdict.explain() == (
        "needs 83.25 of 15.75 GiB per device: parameters 2.00, optimizer 4.00, gradients 2.00, "
        f"activations 3.00, temporaries 72.25; the compiler says: {refusal}"
    )
