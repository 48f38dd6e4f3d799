"""The examples of known environments train, and typos in them are one clear line, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.configs import SHORT

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(example: str, directory: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay", "train", str(EXAMPLES / example), *overrides]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=280, check=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("blackjack.toml", "gymnasium"),
        ("frozenlake.toml", "gymnasium"),
        ("guess_number.toml", "textarena"),
        ("reasoning.toml", "reasoning_gym"),
    ],
)
def test_an_example_trains(example: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    done = train(example, tmp_path, *SHORT, f"run.directory={tmp_path}", "run.name=short")
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "short" / "summary.json").read_text())
    assert (summary["steps"], summary["lost"], summary["repeated"]) == (2, 0, 0)
    assert summary["reward_first"] is not None


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("environment.blackjack.kwargs.id=Blakjack-v1", "Did you mean Blackjack-v1"),
        ("environment.blackjack.kwargs.invalid_rewrd=1", "invalid_rewrd"),
        ("environment.blackjack.entrypoint=gymnasum", "Did you mean 'gymnasium'?"),
        ("environment.blackjack.kwargs.make.nautral=true", "nautral"),
    ],
)
def test_a_typo_is_one_line_before_anything_is_made(override: str, meant: str, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    done = train("blackjack.toml", tmp_path, override)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert (done.returncode, len(errors)) == (2, 1), done.stderr
    assert meant in errors[0]
    assert not list(tmp_path.iterdir())
