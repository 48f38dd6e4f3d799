from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from forebay.config.source import read_source, validate
from forebay.errors import ConfigError


class Optimizer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    learning_rate: float = 1e-3
    steps: int = 1


class Root(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    optimizer: Optimizer = Optimizer()
    batch: int = 4


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_extends_and_overrides_win_in_order(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "batch = 2\n[optimizer]\nlearning_rate = 0.5\nsteps = 7\n")
    top = write(tmp_path / "top.toml", 'extends = "base.toml"\n[optimizer]\nlearning_rate = 0.25\n')
    config = validate(Root, read_source(top, ["batch=9"]))
    assert config == Root(optimizer=Optimizer(learning_rate=0.25, steps=7), batch=9)


def test_c68_unknown_key_names_file_line_section_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "run.toml", "batch = 2\n\n[optimizer]\nlearning_rte = 1e-5\n")
    with pytest.raises(ConfigError) as caught:
        validate(Root, read_source(path))
    message = str(caught.value)
    assert f"{path}:4" in message and "'learning_rte'" in message and "[optimizer]" in message
    assert "'optimizer.learning_rate'" in message
    assert caught.value.exit_code == 2


def test_c68_right_key_in_the_wrong_section_points_to_its_home(tmp_path: Path) -> None:
    path = write(tmp_path / "run.toml", "learning_rate = 1e-5\n")
    with pytest.raises(ConfigError, match=r"run\.toml:1: .*the top level.*'optimizer\.learning_rate'"):
        validate(Root, read_source(path))


def test_wrong_type_names_line_and_value(tmp_path: Path) -> None:
    path = write(tmp_path / "run.toml", '[optimizer]\nsteps = "many"\n')
    with pytest.raises(ConfigError, match=r"run\.toml:2: optimizer\.steps: .*got 'many'"):
        validate(Root, read_source(path))


def test_override_errors_say_where_they_come_from() -> None:
    with pytest.raises(ConfigError, match=r"command line: unknown key 'bach'.*'batch'"):
        validate(Root, read_source(None, ["bach=1"]))
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        read_source(None, ["batch"])


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file at .*nowhere\.toml"):
        read_source(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_source(write(tmp_path / "bad.toml", "a = ["))


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'extends = "b.toml"')
    write(tmp_path / "b.toml", 'extends = "a.toml"')
    with pytest.raises(ConfigError, match="circle"):
        read_source(tmp_path / "a.toml")
