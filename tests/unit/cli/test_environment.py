from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.environment import chosen
from forebay.config import load_config
from forebay.errors import ConfigError
from tests.unit.cli.support import forebay

MISBEHAVING = "tests.unit.envs.misbehaving"
CONFIG = f"""\
[environment.one]
entrypoint = "{MISBEHAVING}:Speaks"
kwargs = {{ text = "twelve tokens" }}
num_tasks = 20

[environment.two]
entrypoint = "calculator"

[generator]
context = 16
prefill_chunks = [16]
"""


def test_an_environment_of_a_configuration_is_named_by_section_or_entrypoint(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(CONFIG)
    assert chosen(load_config(path), "calculator", path).label == "two"
    assert chosen(load_config(path), "one", path).label == "one"
    with pytest.raises(ConfigError, match=r"no environment 'onne' .limit one, two.\. Did you mean 'one'"):
        chosen(load_config(path), "onne", path)
    with pytest.raises(ConfigError, match="several environments"):
        chosen(load_config(path), None, path)


def test_what_is_no_environment_is_refused_before_anything_starts() -> None:
    assert "nothing to check" in forebay("env", "check").text
    code, text = forebay("env", "check", "not an entrypoint")
    assert (code, "'not an entrypoint' is no environment" in text) == (2, True)


def test_built_in_environments_are_listed_with_a_line_each() -> None:
    code, text = forebay("env", "list")
    assert code == 0
    names = [line.split()[0] for line in text.splitlines()]
    assert "calculator" in names and "gymnasium" in names
    assert all(len(line.split()) > 3 for line in text.splitlines())
