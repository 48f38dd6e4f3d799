"""The page on objectives says what the code does, and where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import forebay.objectives
from forebay.objectives import ObjectiveSettings
from forebay.objectives.presets import PRESETS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "objectives.md").read_text()
MODULES = Path(forebay.objectives.__file__).parent
ROWS = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| .*`\w+\.py`", line)]


def written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_writes_out_every_preset(name: str) -> None:
    preset = PRESETS[name]
    fixed, free = (
        ", ".join(f"`{key} = {written(value)}`" for key, value in settings.items())
        for settings in (preset.identity, preset.defaults)
    )
    assert f"| [`{name}`]({preset.paper}) | {fixed} | {free} |" in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_idea_is_in_the_module_and_of_the_paper_that_the_page_names(row: list[str]) -> None:
    for module in re.findall(r"`(\w+\.py)`", row[-2]):
        source = (MODULES / module).read_text()
        for paper in re.findall(r"\((https?://[^)]+)\)", row[1]):
            assert paper in source, (module, paper)


def test_every_choice_is_on_the_page() -> None:
    for field in ("loss", "proximal", "ratio", "correction", "reduction", "advantage"):
        for choice in get_args(ObjectiveSettings.model_fields[field].annotation):
            assert f'"{choice}"' in PAGE, (field, choice)


def test_the_page_has_a_row_for_every_idea() -> None:
    assert len(ROWS) >= 20
