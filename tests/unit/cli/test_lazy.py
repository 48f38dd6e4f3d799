from __future__ import annotations

import importlib
import inspect
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from forebay.cli.app import Commands
from tests.house import surface
from tests.house.sources import ROOT

TREE = dict(surface.walk_commands(surface.command_tree()))
LEAVES = {name: command for name, command in TREE.items() if not getattr(command, "commands", None)}


def examples(command: Any) -> list[str]:
    """Return the example lines of a command's help."""
    text = command.help or ""
    _, found, after = text.partition("Example")
    lines = after.partition(":\n")[2].splitlines() if found else []
    return [line.strip() for line in lines if line.startswith(" ")]


@pytest.mark.parametrize("name", Commands.entries)
def test_the_list_of_commands_says_what_their_docstrings_say(name: str) -> None:
    entry = Commands.entries[name]
    module, _, attribute = entry.target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    said = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert said.splitlines()[0] == entry.summary


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_shows_an_example_that_parses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = examples(LEAVES[name])
    assert lines, f"{name} needs an `Example:` section in its docstring"
    for line in lines:
        program, *words = shlex.split(line.partition("#")[0])
        assert program == "forebay" and f"forebay {' '.join(words)}".startswith(name), line
        context = TREE["forebay"].make_context("forebay", words, resilient_parsing=False)
        command: Any = context.command
        while getattr(command, "commands", None):
            rest = [*context._protected_args, *context.args]
            word, command, rest = command.resolve_command(context, rest)
            context = command.make_context(word, rest, parent=context)
        paths = [item for item in words if item.startswith("examples/")]
        assert [path for path in paths if not Path(path).exists()] == []


def test_an_example_keeps_its_lines_in_the_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "train", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.strip() == "forebay train examples/calculator.toml"] != []
    assert "╭" not in done.stdout


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nfrom forebay.cli import app\napp(['--help'], standalone_mode=False)\nprint(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"forebay.cli.app", "typer"} <= imported
    assert {"numpy", "pydantic", "jax", "rich", "forebay.config", "forebay.cli.train"} & imported == set()
