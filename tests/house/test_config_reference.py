from __future__ import annotations

from forebay.config import RunConfig
from forebay.config.source import known_keys
from scripts import config_reference


def test_the_configuration_page_is_what_the_settings_say() -> None:
    page = config_reference.PAGE.read_text(encoding="utf-8")
    assert page == config_reference.render(), "run .venv/bin/python scripts/config_reference.py --write"


def test_every_setting_is_described_on_it() -> None:
    page = config_reference.PAGE.read_text(encoding="utf-8")
    described = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    sections = {line.strip("# []") for line in page.splitlines() if line.startswith("## ")}
    missing = [
        key for key in known_keys(RunConfig) if key[-1] not in described and ".".join(key) not in sections
    ]
    assert missing == [("environment",)], "it has a section for each name"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []
