from __future__ import annotations

import ast
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.house import sources, surface

PAGES = sorted(path for path in sources.tracked_files() if path.suffix == ".md" and "tests" not in path.parts)
TARGETS = set(re.findall(r"^([a-z]+):", (sources.ROOT / "Makefile").read_text(), re.MULTILINE))
FOLDERS = ("benchmarks", "docs", "examples", "requirements", "scripts", "src", "tests")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def _blocks(page: Path) -> list[Block]:
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in fences]


def _command_lines(page: Path) -> list[str]:
    """Lines of shell blocks, and inline code that starts like a command of this project."""
    shell = [block.text for block in _blocks(page) if block.language in ("bash", "sh", "console", "shell")]
    joined = "\n".join(shell).replace("\\\n", " ")
    lines = [line.removeprefix("$ ").split("#")[0].strip() for line in joined.splitlines()]
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", prose)
    starts = ("make ", "forebay ", ".venv/bin/", "PYTHON=")
    return [line for line in [*lines, *inline] if line.startswith(starts)]


def _words(line: str) -> list[str]:
    return [word for word in shlex.split(line) if not re.match(r"^[A-Z_]+=", word)]


def _misspelled(words: list[str], root: Any) -> list[str]:
    """Return the words after `forebay` that are neither commands nor options where they stand."""
    command, wrong = root, []
    for word in words:
        children = getattr(command, "commands", {})
        if word.startswith("--"):
            known = surface.options_of(command) | {"--help"}
            wrong += [] if word.split("=")[0] in known else [word]
        elif children:
            command = children.get(word, command)
            wrong += [] if word in children else [word]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    named = [
        word
        for words in map(_words, _command_lines(page))
        if words[:1] == ["make"]
        for word in words[1:]
        if not word.startswith("-")
    ]
    assert [target for target in named if target not in TARGETS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    root = surface.command_tree()
    calls = [words for words in map(_words, _command_lines(page)) if words[0].split("/")[-1] == "forebay"]
    assert {" ".join(words): wrong for words in calls if (wrong := _misspelled(words[1:], root))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    code = [*re.findall(r"`([^`\n]+)`", page.read_text()), *_command_lines(page)]
    paths = [
        path.rstrip("/.")
        for path in re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]+", "\n".join(code))
    ]
    assert [path for path in paths if not (sources.ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    relative = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in relative if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_parse(page: Path) -> None:
    for block in _blocks(page):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_exist(page: Path) -> None:
    from forebay.config import RunConfig

    for block in _blocks(page):
        if block.language == "toml":
            assert _unknown_keys(tomllib.loads(block.text), RunConfig, "") == []


def _unknown_keys(table: dict[str, Any], model: Any, prefix: str) -> list[str]:
    """Return the dotted keys that the settings do not have."""
    unknown: list[str] = []
    for key, value in table.items():
        field = model.model_fields.get(key)
        if field is None:
            unknown += [] if (prefix, key) == ("", "extends") else [f"{prefix}{key}"]
        elif isinstance(value, dict) and hasattr(field.annotation, "model_fields"):
            unknown += _unknown_keys(value, field.annotation, f"{prefix}{key}.")
    return unknown


def test_wrong_commands_are_seen() -> None:
    root = surface.command_tree()
    assert _misspelled(["trian"], root) == ["trian"]
    assert _misspelled(["train", "--no-such-option"], root) == ["--no-such-option"]
