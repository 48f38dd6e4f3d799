from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from forebay.cli.preflight import check_environments, check_model_files
from forebay.config import load_config

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))
_ADAPTED = {"gymnasium": "gymnasium", "textarena": "textarena", "reasoning-gym": "reasoning_gym"}
ASSETS = Path(__file__).parents[3] / "src" / "forebay" / "assets"


@pytest.mark.parametrize("path", [*EXAMPLES, *sorted(ASSETS.glob("*.toml"))], ids=lambda path: path.stem)
def test_every_example_has_what_it_names(path: Path) -> None:
    config = load_config(path)
    for environment in config.environment.values():
        if package := _ADAPTED.get(environment.entrypoint):
            pytest.importorskip(package)
    check_environments(config)
    kind, _, package = (config.model.path or "").partition(":")
    if kind == "package" and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert check_model_files(config).max_position >= config.generator.context
    assert len(EXAMPLES) >= 2


def test_the_packaged_example_is_the_one_that_is_shown() -> None:
    assert (ASSETS / "calculator.toml").read_text() == (EXAMPLES[0].with_name("calculator.toml")).read_text()
