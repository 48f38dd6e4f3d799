from __future__ import annotations

from pathlib import Path

from forebay.config import load_config
from tests.unit.cli.support import forebay


def test_show_prints_what_loads_again(tmp_path: Path) -> None:
    path, copy = tmp_path / "run.toml", tmp_path / "copy.toml"
    path.write_text("[optimizer]\nmax_gradient_norm = inf\n[environment.sums]\nentrypoint = 'calculator'\n")
    shown = forebay("config", "show", str(path), "learner.steps=7")
    copy.write_text(shown.text)
    assert load_config(copy) == load_config(path, ["learner.steps=7"])
    assert "steps = 7" in shown.text and "max_gradient_norm = inf" in shown.text


def test_check_says_ok_or_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[learner]\nsteps = 3\n")
    assert forebay("config", "check", str(path)) == (0, f"{path}: ok\n")
    code, text = forebay("config", "check", str(path), "learner.stps=3")
    assert (code, text) == (2, "command line: unknown key 'stps' in [learner]. Did you mean 'learner.steps'?")


def test_check_reads_no_file_of_a_model_or_of_adapters(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("")
    for places in (["model.path=/nowhere"], ["model.lora.rank=2", "model.lora.path=/nowhere"]):
        assert forebay("config", "check", str(path), *places) == (0, f"{path}: ok\n")


def test_diff_names_what_differs_and_nothing_else(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("[learner]\nsteps = 3\n")
    second.write_text(
        "[learner]\nsteps = 4\n[environment.sums]\nentrypoint = 'calculator'\nkwargs = { deep = { x = 1 } }\n"
    )
    lines = forebay("config", "diff", str(first), str(second)).text.splitlines()
    assert "learner.steps: 3 -> 4" in lines
    assert "environment.sums.kwargs.deep.x: '(absent)' -> 1" in lines
    assert "environment.calculator.entrypoint: 'calculator' -> '(absent)'" in lines
    assert all(line.startswith(("learner.steps", "environment.")) for line in lines)
    assert forebay("config", "diff", str(first), str(first)) == (0, "")
