"""The checking process: it hangs, is blocked, crashes or leaves things behind, and the check still ends."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from forebay.envs.checking import _run, check_environment
from tests.unit.cli.support import forebay
from tests.unit.cli.test_environment import CONFIG, MISBEHAVING
from tests.unit.envs.test_checking import request, wrong


def test_c41_everything_that_episodes_leave_behind_is_named_and_then_killed() -> None:
    kinds = ("tasks", "threads", "processes", "files", "sockets", "directories")
    findings = list(_run(request("Leaves", kwargs={"kinds": kinds})))
    left = [text for check, level, text in wrong(findings) if (check, level) == ("leftovers", "fault")]
    names = ("poller", "reader", "sleep 3600", "misbehaving.py", "socket:", "episode-")
    assert len(left) == len(names), left
    assert all(any(name in text for text in left) for name in names), left
    assert sleepers() == []


def sleepers() -> list[int]:
    """Processes that the environments here start and never end."""
    mine = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "3600"]]
    return [p.pid for p in mine if p.status() != psutil.STATUS_ZOMBIE]


def test_a_blocked_event_loop_ends_the_check_with_the_place() -> None:
    findings = wrong(list(_run(request("BlocksForever", timeout_s=0.3))))
    assert [(check, level) for check, level, _ in findings] == [("blocking", "fault")]
    assert "step on '1'" in findings[0][2] and "time.sleep(3600)" in findings[0][2]
    assert "blocking=true" in findings[0][2]


def test_code_that_lets_nothing_else_run_is_killed_from_outside() -> None:
    findings = wrong(list(_run(request("HoldsTheInterpreter", timeout_s=0.3))))
    assert [(check, level) for check, level, _ in findings] == [("blocking", "fault")]
    assert "nothing else could run" in findings[0][2]


def test_code_that_ends_the_process_is_named() -> None:
    findings = wrong(list(_run(request("Exits"))))
    assert findings[0][:2] == ("process", "fault")
    assert "step on '1' ended the process, which exited with code 7" in findings[0][2]


def test_blocking_environments_run_in_workers_and_leave_nothing() -> None:
    good = list(_run(request("BlockingGood", blocking=True)))
    assert wrong(good) == []
    assert "runs in worker processes" in [finding.what for finding in good]
    hung = wrong(list(_run(request("BlockingHangs", blocking=True, timeout_s=0.5))))
    assert hung[0][:2] == ("deadline", "fault")
    assert "step on '1' did not return within 0.5 s" in hung[0][2]
    assert sleepers() == []


def test_settings_or_an_entrypoint_are_enough() -> None:
    heard = []
    report = check_environment(f"{MISBEHAVING}:Lucky", episodes=2, on_finding=heard.append)
    assert report.ok
    assert [finding.check for finding in report.warnings] == ["determinism"]
    assert tuple(heard) == report.findings


def test_a_good_environment_is_a_list_of_findings_and_code_0() -> None:
    code, text = forebay("env", "check", "calculator", "--episodes", "2")
    assert code == 0
    assert text.splitlines()[-1] == "calculator: 0 faults, 0 warnings"
    assert "ok       determinism " in text


def test_a_fault_is_code_2_with_the_remedy_and_the_same_as_json() -> None:
    arguments = ("env", "check", f"{MISBEHAVING}:Rewards")
    code, text = forebay(*arguments)
    assert code == 2
    assert "fault    reward        a reward is str '1.0'\n" in text and "Return a float" in text
    code, text = forebay(*arguments, "--json")
    report = json.loads(text)
    assert (code, report["ok"], report["faults"]) == (2, False, 1)
    assert [f["check"] for f in report["findings"] if f["level"] == "fault"] == ["reward"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (f"{MISBEHAVING}:WithoutStep", "WithoutStep is not an environment class: no step"),
        ("modul:Class", "environment modul:Class cannot be imported: No module named 'modul'"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(target: str, message: str) -> None:
    code, text = forebay("env", "check", target)
    assert code == 2
    assert text.count("\n") <= 1
    assert message in text


def test_the_settings_of_a_configuration_are_used(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(CONFIG)
    code, text = forebay("env", "check", "one", "--config", str(path))
    assert code == 2
    assert "a task takes 17 tokens, and generator.context is 16" in text
