from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.runs import own_run
from forebay.config import load_config
from tests.unit.cli.support import forebay


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory, made = own_run(load_config(None, [f"run.directory={tmp_path}"]))
    directory.close()
    return made.layout.path


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--best", "--follow"), 2, "--best and --follow name different weights"),
        (("--best", "--generator", "http://127.0.0.1:1"), 2, "--best and --generator name different weights"),
        (("--best",), 4, "checkpoints was evaluated. Set learner.eval_every."),
    ],
)
def test_what_best_cannot_mean_is_one_line(
    run: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    ended = forebay("eval", str(run), *options)
    assert (ended.code, message in ended.text) == (code, True), ended.text
    assert not (run / "eval.jsonl").exists()
