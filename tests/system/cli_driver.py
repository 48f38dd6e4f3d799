"""Runs many short `forebay` commands, each in a process of its own that starts with the program imported.

Reads a JSON list of argument lists, and writes a JSON list of [exit code, stdout, stderr].
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from typing import Any

import typer

from forebay.cli import app, main


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Fork, run one command, and return how it ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["forebay", *arguments]
            main()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode()


def import_all() -> None:
    """Import what commands import when they are called, once for all of them."""
    importlib.import_module("forebay.models.checkpoint_io")
    pending: list[Any] = [typer.main.get_command(app)]
    while pending:
        pending += getattr(pending.pop(), "commands", {}).values()


if __name__ == "__main__":
    import_all()
    json.dump([run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
