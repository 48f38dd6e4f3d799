"""The same work synchronous and decoupled: two runs that differ in max_staleness alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.preflight import preflight
from forebay.cli.train import supervise
from forebay.clock import SystemClock
from forebay.config import RunConfig, load_config
from forebay.errors import ConfigError
from forebay.learner.run_directory import RunLayout, open_run
from forebay.telemetry.summary import ComparisonSummary, RunSummary, read_summary, write_summary

CONFIG = Path(__file__).parent.parent / "assets" / "calculator.toml"
_ENDLESS_STEPS = 100_000
_SYNCHRONOUS = ("staleness.max_staleness=0", "staleness.credit=1")
_ROWS = (
    ("busy", "learner computing", "{:.1%}"),
    ("goodput", "goodput of the bare step", "{:.1%}"),
    ("starved", "learner starved", "{:.1%}"),
    ("steps", "steps", "{}"),
    ("steps_per_s", "steps per second", "{:.2f}"),
    ("fresh_tokens_per_s", "fresh tokens per second", "{:.0f}"),
    ("step_s", "step time, s", "{:.2f}"),
    ("env_s", "environment step, s", "{:.2f}"),
    ("max_staleness", "max_staleness", "{}"),
    ("staleness_mean", "mean staleness", "{:.2f}"),
    ("staleness_max", "oldest trained token", "{}"),
    ("discarded", "discarded trajectories", "{}"),
    ("masked_tokens", "masked tokens", "{}"),
    ("compiles_after_warmup", "compiles after warm-up", "{}"),
    ("lost", "lost", "{}"),
    ("repeated", "repeated", "{}"),
    ("reward_first", "reward at first", "{:.2f}"),
    ("reward_last", "reward at last", "{:.2f}"),
)


def compare(
    directory: Path,
    sync_s: float,
    decoupled_s: float,
    overrides: Sequence[str] = (),
    config: Path = CONFIG,
) -> ComparisonSummary:
    """Run both, one after the other; write `summary.json`.

    The synchronous run has every episode of its batch in flight at once: with one batch outstanding there
    is no more concurrency to be had.

    Args:
        directory: Made anew; an earlier comparison there is deleted.
        sync_s: Training time of the synchronous run, which ends with the step that reaches it.
        decoupled_s: Training time of the decoupled one.
        overrides: Settings for both.
        config: What is run.

    Raises:
        ConfigError: A setting cannot work, or the directory holds something else than an earlier comparison.
        RunLockedError: A comparison is going on there.
        Exit: A run was stopped or ended with this code, and said why.
        PeerFailedError: A process failed too often.
    """
    configs = {
        name: load_config(config, (*overrides, *extra, *_limits(name, seconds)))
        for name, extra, seconds in (("sync", _SYNCHRONOUS, sync_s), ("decoupled", (), decoupled_s))
    }
    for name, settings in configs.items():
        preflight(settings, directory / name)
    _clear(directory)
    summaries = {name: _run(directory / name, settings) for name, settings in configs.items()}
    summary = ComparisonSummary(sync=summaries["sync"], decoupled=summaries["decoupled"])
    write_summary(directory / "summary.json", summary)
    return summary


def describe(summary: ComparisonSummary, directory: Path) -> str:
    """Return both runs side by side, as text."""
    table = Table(title="the same agent, the same slow tools, two learners", title_justify="left")
    table.add_column("")
    table.add_column("synchronous", justify="right")
    table.add_column("decoupled", justify="right")
    for name, label, form in _ROWS:
        table.add_row(label, _cell(summary.sync, name, form), _cell(summary.decoupled, name, form))
    console = Console(width=78, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return f"{capture.get()}{directory / 'summary.json'} holds these figures."


def _limits(name: str, seconds: float) -> tuple[str, ...]:
    return f"learner.max_time_s={seconds}", f"learner.steps={_ENDLESS_STEPS}", f"run.name={name}"


def _run(path: Path, config: RunConfig) -> RunSummary:
    typer.echo(
        f"{path.name}: max_staleness {config.staleness.max_staleness}, {config.learner.max_time_s:.0f} s",
        err=True,
    )
    ending = supervise(config, path)
    if ending.code or ending.stopped:
        raise typer.Exit(ending.code)
    return read_summary(RunLayout(path).summary, RunSummary)


def _clear(directory: Path) -> None:
    if not directory.exists():
        return
    strangers = {entry.name for entry in directory.iterdir()} - {
        "sync",
        "decoupled",
        "summary.json",
        "report.html",
    }
    if strangers:
        raise ConfigError(
            f"{directory} holds something else: {', '.join(sorted(strangers)[:4])}",
            remedy="Choose another --directory.",
        )
    for entry in directory.iterdir():
        if RunLayout(entry).manifest.exists():
            # Held for a moment: what is going on there must not lose its files.
            open_run(entry, config={}, seeds={}, clock=SystemClock(), mode="resume").close()
    shutil.rmtree(directory)


def _cell(summary: RunSummary, name: str, form: str) -> str:
    value = getattr(summary, name)
    return "-" if value is None else form.format(value)
