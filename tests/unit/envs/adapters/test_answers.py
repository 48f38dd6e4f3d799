from __future__ import annotations

import resource
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.envs.adapters.answers import (
    TookTooLongError,
    evaluator_of,
    is_plain,
    limited,
    may_run,
)

PLAIN = [
    "24", "-3.5", "(3+5)*2-1", "8/(3-8/3)", "x**3/3 + C", "x*sin(x) + exp(2*x)/2", "sqrt(x)", "x**(1/2)",
    "(x**2 + 1)**3", "[1, 2, 3]", "[['Q', '_'], ['_', 'Q']]", "(1, 2)", "'abc'", "True", "2**-3", "pi/4",
]  # fmt: skip
DANGEROUS = [
    "f()", "__import__('os')", "x.y", "[].append(1)", "[x for x in y]", "lambda: 1", "f'{x}'",
    "x if y else z",
    "a[0]", "{**a}", "print(1)", "sin(*a)", "sin(x=1)", "sin('x')", "'a'*9", "[1]*9", "9**9**9", "9**999",
    "((9**99)**99)**99", "x**(99*99*99)", "9**(2**9)", "10**16*'a'", "9999999999999999", "1 << 99", "~1",
    "subclasses", "1 and f()", "(y := 1)", "await x", "yield", "b'x'", "1j", "...", "a == b", "not a",
]  # fmt: skip


@pytest.mark.parametrize("answer", PLAIN)
def test_what_a_person_would_answer_is_plain(answer: str) -> None:
    assert is_plain(answer)


@pytest.mark.parametrize("answer", [*DANGEROUS, "1+" * 2000 + "1"])
def test_what_runs_or_grows_is_not_plain(answer: str) -> None:
    assert not is_plain(answer)


@given(st.text(max_size=200))
def test_any_text_is_judged(answer: str) -> None:
    assert may_run(answer, "") is False
    assert may_run(answer, "sympy") is not is_plain(answer)
    if may_run(answer, "python"):
        assert not is_plain(answer)


def test_no_python_at_all_cannot_run_as_python_but_sympy_may_rewrite_it() -> None:
    assert not may_run("Q _ _ _\n_ _ Q _", "python")
    assert not may_run("1 2 3", "python")
    assert may_run("f()!", "sympy")
    assert may_run("1 " * 2000, "python")


def _direct(answer: str) -> Any:
    return eval(answer)  # noqa: S307  what the scan has to find


def _indirect(answer: str) -> Any:
    return list(map(_direct, [answer]))


def _harmless(answer: str) -> float:
    return float(answer == "42")


class _Scorer:
    def score(self, answer: str) -> Any:
        return self._parse(answer)

    def _parse(self, answer: str) -> Any:
        return _indirect(answer)


@pytest.mark.parametrize(
    ("scorer", "kind"),
    [
        (_direct, "python"),
        (_indirect, "python"),
        (_harmless, ""),
        (_Scorer.score, "python"),
        (_Scorer().score, "python"),
    ],
)
def test_what_a_scorer_evaluates_with_is_read_from_its_source(scorer: Any, kind: str) -> None:
    assert evaluator_of(scorer) == kind


def test_limits_stop_a_call_and_are_lifted_after_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGPROF)

    def stubborn() -> float:
        caught = 0
        while caught < 3:
            try:
                while True:
                    sum(range(1000))
            except TookTooLongError:
                caught += 1
        raise TookTooLongError

    with pytest.raises(TookTooLongError):
        limited(lambda: float(9**9**9), 0.1)
    with pytest.raises(TookTooLongError):
        limited(stubborn, 0.05)
    with pytest.raises(MemoryError):
        limited(lambda: float(len(bytearray(2 << 30))), 5.0)
    assert limited(lambda: 0.25, 1.0) == 0.25
    assert (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGPROF)) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
