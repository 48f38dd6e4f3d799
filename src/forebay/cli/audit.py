"""`forebay audit`: how fast an environment is, how many episodes at a time it bears, and what limits it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.audit_advice import advise, failures_text
from forebay.cli.auditing import Auditor, Wanted, audited, failure_of, keep, parse_concurrency
from forebay.cli.transcript import visible
from forebay.envs.conformance.watch import Stall
from forebay.errors import EnvironmentFailure, ForebayError
from forebay.planner.audit import Audit, Spread
from forebay.planner.probe_actions import PolicyName
from forebay.planner.profile import read_profile
from forebay.report.text import number, seconds
from forebay.telemetry.logs import setup_logging


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|MODULE:CLASS",
            help="TOML file, entrypoint or built-in name.",
            show_default=False,
        ),
    ],
    environment: Annotated[
        str | None,
        typer.Option(help="NAME of one section [environment.NAME]; by default all.", show_default=False),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Episodes at a time, ascending.")] = "1,4,16,64",
    duration: Annotated[
        float,
        typer.Option("--seconds", min=0.1, help="Time to begin episodes in; at most as much again to end."),
    ] = 60.0,
    policy: Annotated[PolicyName, typer.Option(help="Who answers the environment.")] = "auto",
    action: Annotated[
        str | None, typer.Option(help="What is always answered instead.", show_default=False)
    ] = None,
    action_length: Annotated[int, typer.Option(min=0, help="Characters of a random answer.")] = 64,
    out: Annotated[
        Path | None,
        typer.Option(help="Profile to write, or to add the environments to.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure an environment with more and more episodes at a time; say what limits it, and what to change.

    Its own demonstrations play it if it has any, else random text does. Ctrl-C keeps what was measured.
    Artificial delays of the configuration count. Exit with 4 if no episode ends well.

    Examples:
        forebay audit examples/calculator.toml --out profile.json
        forebay audit my_environment:MyEnvironment --concurrency 1,8 --seconds 30
        forebay audit calculator --action "1+1=" --json
    """
    setup_logging("audit")
    if out is not None and out.exists():
        read_profile(out)  # refused before anything is measured
    levels = parse_concurrency(concurrency)
    command = f"forebay audit {target} --concurrency {','.join(map(str, levels))} --seconds {duration:g}"
    wanted = Wanted(levels, duration, policy, action, action_length, command)
    Session(audited(target, environment, wanted), out, json=json).run()


class Session:
    """Audits of a few environments, and what is said about them.

    Args:
        auditors: The environments.
        out: The profile; None for none.
        json: Whether scripts read what is printed.
    """

    def __init__(self, auditors: list[Auditor], out: Path | None, *, json: bool) -> None:
        self._auditors = auditors
        self._out, self._json = out, json
        self._audits: list[Audit] = []
        self._failures: list[EnvironmentFailure] = []

    def run(self) -> None:
        """Measure one after another.

        Raises:
            EnvironmentFailure: One cannot be started, or no episode of it ended well.
            KeyboardInterrupt: Ctrl-C; what was measured has been kept.
        """
        try:
            for auditor in self._auditors:
                self._measure(auditor)
        finally:
            if self._json:
                typer.echo(as_json(self._audits, self._out))
        if self._failures:
            raise self._failures[0]
        if any(auditor.is_left_behind for auditor in self._auditors):
            # Calls that ignore their cancellation would keep the process alive.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _measure(self, auditor: Auditor) -> None:
        try:
            auditor.run(lambda text: typer.echo(text, err=True), lambda stall: self._stuck(auditor, stall))
        except KeyboardInterrupt:
            self._finish(auditor, interrupted=True)
            raise
        self._finish(auditor, interrupted=False)

    def _finish(self, auditor: Auditor, *, interrupted: bool) -> None:
        found = auditor.conclude(interrupted=interrupted)
        self._audits.append(found)
        if (failure := failure_of(found)) is not None:
            self._failures.append(failure)
        profile = auditor.profile(found)
        if self._out is not None and profile is not None:
            keep(self._out, profile)
        if not self._json:
            show(found, Console(highlight=False, soft_wrap=True))
            if self._out is not None and profile is not None:
                typer.echo(f"\nwritten: {self._out}")

    def _stuck(self, auditor: Auditor, stall: Stall) -> None:
        """End the process from the watching thread: the event loop will not run again."""
        code = EnvironmentFailure.exit_code
        try:
            self._finish(auditor, interrupted=True)
            if self._json:
                typer.echo(as_json(self._audits, self._out))
        except ForebayError as error:
            typer.echo(f"error: {error}", err=True)
        failure = EnvironmentFailure(
            f"environment {auditor.settings.label} has blocked the event loop for {stall.duration_s:.0f} s, "
            f"at {visible(stall.where)}",
            remedy="Set blocking=true to run it in processes that can be killed, or await there.",
        )
        typer.echo(f"error: {failure}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def show(found: Audit, console: Console) -> None:
    """Print an audit as a page."""
    title = f"\n{visible(found.name)}, answered with {found.actions}"
    console.print(title + (" (interrupted)" if found.interrupted else ""), style="bold", markup=False)
    if found.levels:
        console.print(_rates(found))
        console.print()
        console.print(_times(found))
        console.print()
    for sentence in advise(found):
        console.print(f"- {sentence}", markup=False)


def _rates(found: Audit) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("at a time", "answers/s", "95 %", "episodes/s", "ended"):
        table.add_column(heading, justify="right")
    table.add_column("of these failed; cut")
    for level in found.levels:
        rate = level.answers_per_s
        table.add_row(
            str(level.concurrency),
            number(rate.value),
            f"±{number(rate.high - rate.value)}",
            "-" if level.episodes_per_s is None else number(level.episodes_per_s),
            str(level.num_episodes),
            failures_text(level),
        )
    return table


def _times(found: Audit) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("time of a")
    for heading in ("at a time", "p50", "p95", "p99", "max", "samples"):
        table.add_column(heading, justify="right")
    for what in ("reset", "step", "episode"):
        for level in found.levels:
            times: Spread | None = getattr(level, f"{what}_s")
            if times is not None:
                cells = map(seconds, (times.p50, times.p95, times.p99, times.max))
                table.add_row(what, str(level.concurrency), *cells, number(times.num_samples))
    return table


def as_json(audits: list[Audit], out: Path | None) -> str:
    """Return audits for scripts."""
    environments: list[dict[str, Any]] = []
    for found in audits:
        entry = msgspec.to_builtins(found)
        environments.append({**entry, "own_share": found.own_share, "advice": advise(found)})
    result = {
        "environments": environments,
        "interrupted": any(found.interrupted for found in audits),
        "profile": None if out is None else str(out),
    }
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
