"""`forebay env`: check an environment before a run does, and list those that come with forebay."""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from forebay.cli.runs import model_files
from forebay.config import RunConfig, load_config
from forebay.envs.checking import Finding, Report, check_environment
from forebay.envs.registry import BUILT_IN, load_class
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError

app = typer.Typer(help="Check an environment, and list those that come with forebay.", no_args_is_help=True)

_EXTRA_PREFIX = "envs-"


class Target(NamedTuple):
    """What is checked.

    Attributes:
        settings: The environment.
        context_tokens: Most tokens of an episode.
        tokenizer: Directory of the tokenizer; None for the small one.
    """

    settings: EnvironmentSettings
    context_tokens: int
    tokenizer: Path | None


@app.command()
def check(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:CLASS",
            help="Entrypoint, a built-in name, or the NAME of a section [environment.NAME] of --config.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file whose settings, context and tokenizer are used.", show_default=False),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that are played.")] = 4,
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest time for one call, seconds.")] = 20.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that an environment keeps its contract, in a process of its own; exit with 2 if it does not.

    Looked at: the class and its tasks, what reset and step return, rewards, sizes, determinism, two episodes
    at once, unusual answers, cancellation, close, what episodes leave behind, and who blocks the event loop.

    Examples:
        forebay env check calculator
        forebay env check my_environment:MyEnvironment --timeout 60
        forebay env check --config examples/calculator.toml --json
    """

    def say(finding: Finding) -> None:
        # What cannot even be imported or made is one line at the end.
        if not json and (finding.check, finding.level) != ("class", "fault"):
            typer.echo(str(finding))

    with _target(environment, config) as target:
        report = check_environment(
            target.settings,
            episodes=episodes,
            timeout_s=timeout,
            context_tokens=target.context_tokens,
            tokenizer=target.tokenizer,
            on_finding=say,
        )
    if json:
        typer.echo(as_json(report))
    elif len(report.findings) == 1 and not report.ok:
        raise ConfigError(report.findings[0].what, remedy=report.findings[0].remedy or None)
    else:
        typer.echo(report.verdict)
    if not report.ok:
        raise typer.Exit(ConfigError.exit_code)


@app.command(name="list")
def list_built_in() -> None:
    """List the environments that come with forebay, and the extra that each needs.

    Example:
        forebay env list
    """
    for name in BUILT_IN:
        first = (inspect.getdoc(load_class(name)) or "").split("\n")[0]
        extra = f"{_EXTRA_PREFIX}{name}"
        needs = f" Needs: pip install 'forebay[{extra}]'" if extra in _extras() else ""
        typer.echo(f"{name:<14} {first}{needs}")


def as_json(report: Report) -> str:
    """Return a report for scripts."""
    entry = {
        "environment": report.entrypoint,
        "ok": report.ok,
        "faults": len(report.faults),
        "warnings": len(report.warnings),
        "findings": [
            {"check": f.check, "level": f.level, "what": f.what, "remedy": f.remedy} for f in report.findings
        ],
    }
    return msgspec.json.format(msgspec.json.encode(entry), indent=2).decode()


def chosen(config: RunConfig, wanted: str | None, file: Path) -> EnvironmentSettings:
    """Return the environment of a configuration that is meant.

    Args:
        config: The configuration.
        wanted: Its name or entrypoint; None if there is but one.
        file: Where it comes from; named in the error.

    Raises:
        ConfigError: There is none of that name, or several to choose from.
    """
    known = config.environment
    matches = [s for name, s in known.items() if wanted is None or wanted in (name, s.entrypoint)]
    if len(matches) == 1:
        return matches[0]
    near = difflib.get_close_matches(wanted or "", [*known, *(s.entrypoint for s in known.values())], 1)
    raise ConfigError(
        f"{file} has {'several environments' if matches else f'no environment {wanted!r}'}",
        limit=", ".join(known),
        remedy=f"Did you mean {near[0]!r}?" if near else "Name one of them.",
    )


@contextmanager
def _target(environment: str | None, file: Path | None) -> Iterator[Target]:
    if file is None:
        if environment is None:
            raise ConfigError("nothing to check", remedy="Name module:Class, or a file with --config.")
        yield Target(_settings(environment), RunConfig().generator.context, None)
        return
    config = load_config(file)
    settings = chosen(config, environment, file)
    with tempfile.TemporaryDirectory(prefix="forebay-tokenizer-") as directory:
        for name, content in model_files(config).items():
            (Path(directory) / name).write_bytes(content)
        yield Target(settings, config.generator.context, Path(directory))


def _settings(entrypoint: str) -> EnvironmentSettings:
    try:
        return EnvironmentSettings(entrypoint=entrypoint)
    except ValueError:
        raise ConfigError(
            f"{entrypoint!r} is no environment", remedy="Write module:Class, or a built-in name."
        ) from None


def _extras() -> list[str]:
    return importlib.metadata.metadata("forebay").get_all("Provides-Extra") or []
