"""An audit as it goes: part after part, each kept as soon as it is measured, and what they mean together."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import typer
from rich.console import Console

from forebay.cli.audit_choice import Files, Make
from forebay.cli.audit_environment import EnvironmentPart
from forebay.cli.audit_limits_text import limit_sentences
from forebay.cli.audit_parts import Part
from forebay.cli.transcript import visible
from forebay.envs.conformance.watch import Stall
from forebay.errors import EnvironmentFailure, ForebayError
from forebay.planner.audit_limits import limits_of
from forebay.planner.profile import Profile, merge_profiles


class Session:
    """Measures parts, and says what was found.

    Args:
        files: Profiles that are read and written.
        known: What the former hold.
        json: Whether scripts read what is printed.
    """

    def __init__(self, files: Files, known: Profile, *, json: bool) -> None:
        self._files, self._profile, self._json = files, known, json
        self._finished: list[Part] = []
        self._failures: list[ForebayError] = []
        self._is_interrupted = False

    def run(self, make: Make) -> None:
        """Measure one part after another; one that fails does not keep the others from it.

        Args:
            make: Makes the parts.

        Raises:
            ForebayError: Why the first of those that failed did.
            KeyboardInterrupt: Ctrl-C; what was measured has been kept.
        """
        parts = make(self._stuck)
        self._files.refuse_known(self._profile, parts)
        try:
            for part in parts:
                self._measure(part)
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise
        finally:
            self._conclude()
        if self._failures:
            raise self._failures[0]
        if any(isinstance(part, EnvironmentPart) and part.is_left_behind for part in parts):
            _leave(0)

    def _measure(self, part: Part) -> None:
        try:
            part.measure(_say)
        except ForebayError as error:
            if self._failures:  # the first one ends the command, and is told then
                _say(f"error: {error}")
            self._failures.append(error)
        finally:
            self._finish(part)

    def _finish(self, part: Part) -> None:
        self._finished.append(part)
        found = part.profile()
        if found is not None:
            self._profile = merge_profiles([self._profile, found])
            if self._files.out is not None:
                self._files.write(self._profile)
        if not self._json:
            part.show(Console(highlight=False, soft_wrap=True))

    def _conclude(self) -> None:
        """Print what all parts mean together, or the one object for scripts."""
        if self._json:
            typer.echo(self._as_json())
            return
        if self._is_interrupted:
            typer.echo("\ninterrupted: the figures are of what was measured until then")
        if sentences := limit_sentences(self._profile):
            typer.echo("\nwhat limits")
            for sentence in sentences:
                typer.echo(f"- {sentence}")
        if self._files.out is not None and any(part.profile() is not None for part in self._finished):
            typer.echo(f"\nwritten: {self._files.out}")

    def _as_json(self) -> str:
        result: dict[str, Any] = {"environments": []}
        for part in self._finished:
            for name, value in part.as_json().items():
                result[name] = [*result[name], *value] if name == "environments" else value
        out = self._files.out
        result |= {
            "limits": msgspec.to_builtins(limits_of(self._profile)),
            "advice": limit_sentences(self._profile),
            "interrupted": self._is_interrupted,
            "profile": None if out is None else str(out),
        }
        return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()

    def _stuck(self, part: EnvironmentPart, stall: Stall) -> None:
        """End the process from the watching thread: the event loop will not run again."""
        self._is_interrupted = True
        try:
            self._finish(part)
            self._conclude()
        except ForebayError as error:
            typer.echo(f"error: {error}", err=True)
        failure = EnvironmentFailure(
            f"environment {part.label} has blocked the event loop for {stall.duration_s:.0f} s, "
            f"at {visible(stall.where)}",
            remedy="Set blocking=true to run it in processes that can be killed, or await there.",
        )
        typer.echo(f"error: {failure}", err=True)
        _leave(EnvironmentFailure.exit_code)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _leave(code: int) -> None:
    # Calls that ignore their cancellation would keep the process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
