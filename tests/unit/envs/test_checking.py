"""What the conformance checks find in environments that each do one thing wrong."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from forebay.envs.checking import Finding, Report
from forebay.envs.conformance.findings import CheckRequest, Word
from forebay.envs.conformance.main import run_checks
from forebay.envs.settings import EnvironmentSettings

MODULE = "tests.unit.envs.misbehaving"
EVERYTHING = ["answers", "blocking", "cancellation", "class", "determinism", "episodes", "isolation"]
EVERYTHING += ["leftovers", "messages", "reward", "size", "speed", "tasks"]


def request(name: str, timeout_s: float = 5.0, **values: Any) -> CheckRequest:
    settings = EnvironmentSettings(**({"entrypoint": f"{MODULE}:{name}", "num_tasks": 40} | values))
    return CheckRequest(
        settings=settings.model_dump(mode="json"),
        episodes=3,
        timeout_s=timeout_s,
        grace_s=0.1,
        blocked_s=0.1,
        slack_s=1.0,
    )


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the checks a directory for temporary files in which nobody else works."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def found(name: str, **values: Any) -> list[Finding]:
    """Check in this process an environment that lets it."""
    said: list[Word] = []

    def give_up() -> NoReturn:
        raise AssertionError("the event loop is blocked")

    asyncio.run(run_checks(request(name, **values), said.append, give_up))
    return [word for word in said if isinstance(word, Finding)]


def wrong(findings: list[Finding]) -> list[tuple[str, str, str]]:
    """What is not ok: (check, level, what and remedy)."""
    return [(f.check, f.level, f"{f.what} {f.remedy}") for f in findings if f.level != "ok"]


@pytest.mark.usefixtures("own_temporary")
def test_a_good_environment_passes_every_check() -> None:
    findings = found("Good")
    assert wrong(findings) == []
    assert sorted(finding.check for finding in findings) == EVERYTHING


CASES: list[tuple[str, dict[str, Any], str, str, list[str]]] = [
    ("HangsInReset", {"timeout_s": 0.2}, "deadline", "fault", ["reset on task n0 did not return within 0.2"]),
    ("HangsInStep", {"timeout_s": 0.2}, "deadline", "fault", ["on '1'", "misbehaving.py:", "step_timeout_s"]),
    ("Computes", {"timeout_s": 0.2}, "deadline", "fault", ["9**9**9**9"]),
    ("BlocksForAWhile", {}, "blocking", "fault", ["blocked the event loop", "time.sleep", "blocking="]),
    ("WantsToExit", {}, "step", "fault", ["raised SystemExit: enough"]),
    ("PlainFunctions", {}, "reset", "fault", ["plain function", "async def", "blocking=true"]),
    ("Rewards", {"kwargs": {"kind": "string"}}, "reward", "fault", ["str '1.0'", "Return a float"]),
    ("Rewards", {"kwargs": {"kind": "list"}}, "reward", "fault", ["list [1.0]"]),
    ("Rewards", {"kwargs": {"kind": "nan"}}, "reward", "fault", ["a reward is nan", "finite"]),
    ("Rewards", {"kwargs": {"kind": "bool"}}, "reward", "warning", ["bool True"]),
    ("Rewards", {"kwargs": {"kind": "numpy"}}, "reward", "warning", ["float32"]),
    ("Rewards", {"kwargs": {"kind": "none"}}, "reward", "warning", ["no reward in any of 3 episodes"]),
    ("WrongTypes", {"kwargs": {"step": "tuple"}}, "step", "fault", ["tuple ('text', 1.0)", "Outcome"]),
    ("WrongTypes", {"kwargs": {"step": "silent"}}, "step", "warning", ["says nothing"]),
    ("WrongTypes", {"kwargs": {"reset": "text"}}, "reset", "fault", ["str 'hello'", "Observation"]),
    ("WrongTypes", {"kwargs": {"reset": "dict"}}, "reset", "fault", ["dict {'role'", "Message"]),
    ("WrongTypes", {"kwargs": {"reset": "role"}}, "reset", "fault", ["'human'", "system, user, assistant"]),
    ("WrongTypes", {"kwargs": {"reset": "number"}}, "reset", "fault", ["int 5"]),
    ("Speaks", {"kwargs": {"text": "Größe 3"}}, "messages", "warning", ["does not know G ß ö", "lower-case"]),
    ("Speaks", {"kwargs": {"text": "x" * 600}}, "size", "fault", ["604 tokens", "512", "generator.context"]),
    ("Evaluates", {}, "answers", "fault", ["run as code", "eval"]),
    ("Picky", {}, "answers", "fault", ["ValueError: what is that", "an empty answer, blanks, a NUL"]),
    ("Repeats", {}, "answers", "warning", ["'<end>'", "real tokens"]),
    ("Lucky", {}, "determinism", "warning", ["step 1 of n0: reward 0.", "Task.seed"]),
    ("Shares", {}, "isolation", "fault", ["'1 after 0'", "'1 after 1'", "in self"]),
    ("IgnoresCancellation", {}, "cancellation", "fault", ["a cancelled step still runs after 0.1 s"]),
    ("ClosesOnce", {}, "close", "fault", ["the second time, raised AttributeError", "half-made"]),
    ("Tasks", {"tasks_kwargs": {"fault": "few"}}, "tasks", "warning", ["asked for 40 tasks and gave 3"]),
    ("Tasks", {"tasks_kwargs": {"fault": "object"}}, "tasks", "fault", ["payload of n0 is not JSON"]),
    ("Tasks", {"tasks_kwargs": {"fault": "tuple"}}, "tasks", "warning", ["reads back differently"]),
    ("Tasks", {"tasks_kwargs": {"fault": "random"}}, "tasks", "fault", ["other tasks the second time"]),
    ("Tasks", {"tasks_kwargs": {"fault": "repeated"}}, "tasks", "fault", ["39 of 40 tasks repeat"]),
    ("Tasks", {"tasks_kwargs": {"fault": "name"}}, "tasks", "fault", ["'a task/0'"]),
    ("Tasks", {"tasks_kwargs": {"fault": "shape"}}, "tasks", "fault", ["{'id': 'n0'}", '"task_id"']),
    ("NoTasks", {}, "tasks", "fault", ["there are no tasks", "environment.NAME.tasks"]),
    ("WithoutStep", {}, "class", "fault", ["not an environment class: no step"]),
    ("HangInStep", {}, "class", "fault", ["cannot be imported", f"Did you mean {MODULE}:HangsInStep?"]),
    ("Speaks", {"kwargs": {"depth": 3}}, "class", "fault", ["Speaks refuses its kwargs", "'depth'"]),
    ("Good", {"reward": f"{MODULE}:answer_length"}, "step", "fault", ["answer_length failed", "got str"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values", "check", "level", "pieces"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES]
)
@pytest.mark.usefixtures("own_temporary")
def test_one_fault_is_found_and_named(
    name: str, values: dict[str, Any], check: str, level: str, pieces: list[str]
) -> None:
    faults = wrong(found(name, **values))
    texts = [text for *where, text in faults if where == [check, level]]
    assert len(texts) >= 1, faults
    assert all(piece in texts[0] for piece in pieces), texts[0]
    assert {found_check for found_check, _, _ in faults} <= {check, "tasks"}, faults


def test_a_report_is_readable_and_says_whether_it_is_ok() -> None:
    fault = Finding("reward", "fault", "a reward is str '1'", "Return a float.")
    failed = Report("e:E", (Finding("class", "ok", "made"), fault))
    assert (failed.ok, failed.faults, failed.warnings) == (False, (fault,), ())
    assert str(failed).splitlines() == [
        "ok       class         made",
        "fault    reward        a reward is str '1'",
        "                       Return a float.",
        "e:E: 1 faults, 0 warnings",
    ]
    assert Report("e:E", (Finding("tasks", "warning", "few"),)).ok
