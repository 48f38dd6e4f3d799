from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.launch.probes import Finding, interpreter
from forebay.launch.probes.requirements import parse_requirement

HERE = str(Path(forebay.__file__).parents[1])


def second_copy(directory: Path, version: str) -> Path:
    package = directory / "forebay"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""Another one."""\n\n__version__ = "{version}"\n')
    return package


def test_two_versions_of_the_package_are_named_with_their_places(tmp_path: Path) -> None:
    package = second_copy(tmp_path, "0.0.7")
    [finding] = interpreter.look_at_copies([HERE, str(tmp_path)])
    assert finding.level == "bad"
    assert f"0.0.7 in {package}" in finding.seen
    assert f"{forebay.__version__} in {Path(forebay.__file__).parent}" in finding.seen
    assert "pip uninstall forebay" in finding.remedy


def test_one_package_reached_twice_is_one(tmp_path: Path) -> None:
    (tmp_path / "forebay").symlink_to(Path(forebay.__file__).parent)
    assert len(interpreter.copies_on([HERE, str(tmp_path), "", "nowhere"])) == 1


def test_a_forebay_of_another_environment_in_the_path_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "forebay"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = interpreter.look_at_copies([HERE])
    assert [(item.what, item.level) for item in findings][1:] == [("command", "warn")]
    assert f"the shell runs {command}" in findings[1].seen


@pytest.mark.parametrize(
    ("encodings", "level"),
    [
        ({"file names": "utf-8", "output": "UTF-8"}, "ok"),
        ({"file names": "utf-8", "output": "ANSI_X3.4-1968"}, "warn"),
        ({"file names": "iso8859-1", "output": "utf8"}, "warn"),
    ],
)
def test_other_encodings_than_utf8_are_named(encodings: dict[str, str], level: str) -> None:
    [finding] = interpreter.look_at_encoding(encodings)
    assert finding.level == level
    if level == "warn":
        assert "export LC_ALL=C.UTF-8" in finding.remedy


def test_packages_of_this_environment_satisfy_the_metadata() -> None:
    [finding] = interpreter.look_at_packages()
    assert finding.level == "ok" and "jax 0." in finding.seen


def test_an_absent_extra_is_a_note_with_the_command_that_installs_it() -> None:
    lines = [
        "numpy>=1",
        'no-such-package>=2; extra == "gguf"',
        'lmdb>=1; extra == "redis"',
        'no-such-package; extra == "dev"',
    ]
    findings = interpreter.look_at_extras([parse_requirement(line) for line in lines])
    assert findings == [
        Finding("extra gguf", "note", "no-such-package missing (needs >=2)", "pip install 'forebay[gguf]'"),
        Finding("extra redis", "ok", "installed"),
    ]
