"""`forebay doctor`: look at the machine and say what would go wrong, and what mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from forebay.cli.completing import complete_run
from forebay.cli.examining import probes_for, subject_of
from forebay.clock import SystemClock
from forebay.errors import PeerFailedError
from forebay.launch.probes import Finding, look


def doctor(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A run directory or a TOML file to check the machine for.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where runs will be written; by default run.directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this machine, and say how to mend what is wrong; exit with 4 if something is.

    It looks at Python and packages, devices, cores, memory, disk, ports, clock, encoding and what earlier
    runs left behind. Given a configuration or a run, it also checks whether that one can start. It takes 15
    seconds at most and leaves nothing behind.

    Examples:
        forebay doctor
        forebay doctor examples/calculator.toml
        forebay doctor runs/calculator --json
    """
    clock = SystemClock()
    findings = []
    for finding in look(list(probes_for(subject_of(target, directory), clock)), clock):
        findings.append(finding)
        if not as_json:
            typer.echo(describe(finding))
    bad = [finding.what for finding in findings if finding.level == "bad"]
    if as_json:
        report = msgspec.json.encode({"ok": not bad, "findings": findings})
        typer.echo(msgspec.json.format(report, indent=2).decode())
    if bad:
        raise PeerFailedError(f"forebay will not run well here: {', '.join(bad)}")


def describe(finding: Finding) -> str:
    """Return a finding as one line, and its remedy as another.

    Example:
        >>> print(describe(Finding("disk", "bad", "0.1 GiB free for runs", "Free space.")))
        bad   disk            0.1 GiB free for runs
                              -> Free space.
    """
    line = f"{finding.level:<5} {finding.what:<15} {finding.seen}"
    return f"{line}\n{'':<22}-> {finding.remedy}" if finding.remedy else line
