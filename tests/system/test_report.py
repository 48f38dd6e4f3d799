from __future__ import annotations

import subprocess

import pytest

from tests.system.harness import command
from tests.unit.report.runs import line, make_run

pytest.importorskip("jax")
pytestmark = pytest.mark.timeout(400)


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command("report", *map(str, arguments))


def test_a_trained_run_says_its_verdict_and_has_a_page(told) -> None:
    (said,) = [line for line in told.output.splitlines() if line.startswith("verdict: ")]
    done = report(told.path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"told: {said.removeprefix('verdict: ')}"
    (life,) = [line for line in told.output.splitlines() if line.startswith("tokens: ")]
    assert done.stdout.splitlines()[1] == f"told: {life.removeprefix('tokens: ')}"
    assert "% of a token's life of" in life
    html = (told.path / "report.html").read_text()
    for panel in (
        "time",
        "busy",
        "learning",
        "staleness",
        "life",
        "latency",
        "lengths",
        "failures",
        "trajectories",
    ):
        assert f'<section class="panel" id="{panel}"' in html
    assert "Mean life of a trained token" in html
    assert "Little&#39;s law: what was seen inside against what passed through" in html
    assert "Trained in step 1" in html
    # Evaluations were switched off; everything else is recorded by a run of today.
    assert html.count("not recorded") == 1, [s for s in html.splitlines() if "not recorded" in s]


def test_two_runs_are_compared(told, tmp_path) -> None:
    other = make_run(tmp_path / "other", [line()] * 3)
    done = report(other, told.path, "--to", tmp_path / "both.html")
    assert done.returncode == 0, done.stderr
    assert [said.split(":")[0] for said in done.stdout.splitlines()[:2]] == ["other", "told"]
    assert "Settings that differ" in (tmp_path / "both.html").read_text()
    assert not (other / "report.html").exists()


def test_a_run_killed_before_its_first_step_has_a_page(tmp_path) -> None:
    done = report(make_run(tmp_path / "dead"))
    assert done.returncode == 0, done.stderr
    assert "no batch has been trained" in done.stdout


def test_wrong_calls_end_in_one_clear_line(tmp_path) -> None:
    made = [make_run(tmp_path / name) for name in ("a", "b", "c")]
    damaged = make_run(tmp_path / "damaged")
    (damaged / "manifest.json").write_text("{")
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ((tmp_path / "nowhere",), "is not a directory"),
        ((tmp_path,), "is not a run directory"),
        (made, "at most two runs"),
        ((damaged,), "is damaged"),
        ((made[0], "--to", tmp_path / "file" / "page.html"), "Not a directory"),
        ((made[0], "--to", "/proc/page.html"), "cannot write /proc/page.html"),
        ((made[0], "--to", tmp_path), "is a directory"),
    ):
        done = report(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert len(done.stderr.strip().splitlines()) == 1
        assert words in done.stderr
