from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forebay.cli.completing import complete_override, complete_run


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/calculator", "runs/demo/sync", "runs/demo/decoupled", "elsewhere/mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "run.toml").write_text("[environment.guess]\nentrypoint = 'guess:Guess'\n")
    return tmp_path


class Before(NamedTuple):
    """What stands before the word that is completed."""

    params: dict[str, Any]


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word, by a process of its own that must not import JAX."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('JAX' * ('jax' in sys.modules), file=sys.stderr))\n"
        "from forebay.cli import main\nsys.argv = ['forebay']\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ
        | {
            "_FOREBAY_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["forebay", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "JAX" not in done.stderr
    return done.stdout.split()


def test_runs_are_found_by_path_and_by_name(workplace: Path) -> None:
    assert complete_run("ru") == ["runs/calculator", "runs/demo/decoupled", "runs/demo/sync"]
    assert complete_run("runs/d") == ["runs/demo/decoupled", "runs/demo/sync"]
    assert complete_run("sy") == ["runs/demo/sync"]
    assert complete_run("elsewhere/") == ["elsewhere/mine"]
    assert complete_run("zzz") == []


def test_the_shell_is_offered_what_fits(workplace: Path) -> None:
    assert completed("st") == ["store"]
    assert completed("export", "runs/c") == ["runs/calculator"]
    assert completed("train", "run.toml", "staleness.max") == ["staleness.max_staleness="]


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("environment.guess.max_t", ["environment.guess.max_turns="]),
        ("environment.calculator", []),
        (
            "staleness.on_stale=",
            ["staleness.on_stale=wait", "staleness.on_stale=drop", "staleness.on_stale=mask"],
        ),
        ("batching.mask_truncated=t", ["batching.mask_truncated=true"]),
        ("learner.steps=1", []),
    ],
)
def test_settings_are_those_of_the_file(workplace: Path, word: str, offered: list[str]) -> None:
    assert complete_override(Before({"config": Path("run.toml")}), word) == offered


def test_without_a_file_the_environment_is_the_default_one(workplace: Path) -> None:
    assert complete_override(Before({}), "environment.calculator.we") == ["environment.calculator.weight="]
