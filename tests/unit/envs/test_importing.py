from __future__ import annotations

from pathlib import Path

import pytest

from forebay.envs.importing import import_named
from forebay.errors import ConfigError


def test_a_name_is_found_also_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rewards.py").write_text("def score(): return 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert import_named("own_rewards:score", "reward function")() == 5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_modul:Class", r"No module named 'own_modul'\. Did you mean own_module:Class\?"),
        ("own_module:Clss", r"has no attribute 'Clss'\. Did you mean own_module:Class\?"),
        ("own_module:zzz", r"has no attribute 'zzz'\. Run from the directory"),
        ("own_broken:Class", r"No module named 'no_such_thing'\. Run from the directory"),
        ("own_syntax:Class", r"invalid syntax|was never closed"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text("class Class: pass\n")
    (tmp_path / "own_broken.py").write_text("import no_such_thing\n")
    (tmp_path / "own_syntax.py").write_text("class (\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"environment {path} cannot be imported: .*({message})"):
        import_named(path, "environment")
