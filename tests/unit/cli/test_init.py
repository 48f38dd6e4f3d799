from __future__ import annotations

import keyword
import sys
from pathlib import Path

import pytest

from forebay.cli.init import check_module_name, write_environment
from forebay.cli.preflight import check_environments, check_model_files
from forebay.config import load_config
from forebay.errors import ConfigError
from tests.unit.cli.support import forebay


def test_a_new_environment_has_everything_that_a_run_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = forebay("init", "env", "my_maze", "--to", "deep/down")
    assert (code, text.splitlines()[0]) == (0, "deep/down is ready:")
    monkeypatch.chdir(tmp_path / "deep" / "down")
    files = {path.name for path in Path().iterdir()}
    assert files == {"my_maze.py", "my_maze.toml", "test_my_maze.py", "README.md"}
    assert not any("$" in path.read_text() for path in Path().iterdir())
    monkeypatch.syspath_prepend(str(Path().absolute()))
    config = load_config(Path("my_maze.toml"))
    assert config.environment["my_maze"].entrypoint == "my_maze:MyMaze"
    check_environments(config)
    assert check_model_files(config).max_position >= config.generator.context
    assert forebay("env", "check", "--config", "my_maze.toml").code == 0


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "maze"
    directory.mkdir()
    with pytest.raises(ConfigError, match="maze exists already"):
        write_environment("maze", directory)
    assert list(directory.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*maze \(got Not a directory, in .*file\)"):
        write_environment("maze", tmp_path / "file" / "maze")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "maze"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Env", r"'My-Env'.* Try my_env\."),
        ("2048", "lower-case letter"),
        ("", "lower-case letter"),
        ("größe", r"Try gr_e\."),
        ("../evil", r"Try evil\."),
        ("a" * 41, "at most 39"),
        ("lambda", "keyword of Python"),
        ("match", "keyword of Python"),
        ("json", "there is a module json already"),
        ("numpy", "there is a module numpy already"),
        ("forebay", "there is a module forebay already"),
    ],
)
def test_names_that_would_not_work_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_module_name(name)


def test_no_keyword_and_no_module_of_python_passes() -> None:
    for name in (*keyword.kwlist, *keyword.softkwlist, *sys.stdlib_module_names):
        with pytest.raises(ConfigError):
            check_module_name(name)
    check_module_name("guess_the_number")
