"""Commands run in this process."""

from __future__ import annotations

from typing import NamedTuple

from typer.testing import CliRunner

from forebay.cli import app
from forebay.errors import ForebayError


class Result(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    text: str


def forebay(*arguments: str) -> Result:
    """Run a command; an expected error gives its exit code and message."""
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, ForebayError):
        return Result(result.exception.exit_code, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.output)
