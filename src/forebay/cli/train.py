"""`forebay train`: all processes of a run on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from forebay.cli.configuration import ConfigPath, Overrides
from forebay.cli.following import Follower
from forebay.cli.preflight import preflight
from forebay.cli.roles import OTHER_CPUS_VARIABLE, base_address, free_port
from forebay.cli.runs import Run, own_run
from forebay.cli.troubles import Troubles
from forebay.clock import SystemClock
from forebay.config import RunConfig, load_config
from forebay.config.dump import to_toml
from forebay.launch import ProcessSpec, Supervisor, divide_cpus, share_of
from forebay.launch.placement import with_huge_pages
from forebay.learner.gang.token import TOKEN_VARIABLE
from forebay.learner.run_directory import RunDirectory, RunLayout
from forebay.report import load_run, verdict_of
from forebay.telemetry.progress import ProgressPrinter
from forebay.telemetry.summary import RunSummary, read_summary


def train(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option(help="Check everything and print the configuration; start nothing.")
    ] = False,
    prepare: Annotated[
        bool, typer.Option(help="Make the run directory, for learn, generate and act by hand; start nothing.")
    ] = False,
) -> None:
    """Train on this machine: learner, generator and actors as processes, restarted when they die.

    A run that was started before goes on where it stopped. Ctrl-C stops in order; a second one at once.

    Examples:
        forebay train examples/calculator.toml
        forebay train examples/calculator.toml learner.steps=200 run.name=longer
        forebay train examples/calculator.toml --dry-run
    """
    settings = load_config(config, overrides or [])
    if dry_run:
        preflight(settings, settings.run.path)
        typer.echo(to_toml(settings))
        return
    if prepare:
        # vLLM servers start from the files that this makes, so they cannot be there yet; the learner may be
        # meant for another machine.
        preflight(settings, settings.run.path, starts_here=False)
        own_run(settings)[0].close()
        typer.echo(f"{settings.run.path} is ready for forebay learn, generate and act")
        return
    ending = supervise(settings)
    if ending.stopped:
        typer.echo(f"stopped; the same command goes on with {settings.run.path}", err=True)
    elif ending.code == 0:
        typer.echo(farewell(settings.run.path))
    if ending.code:
        raise typer.Exit(ending.code)


class Ending(NamedTuple):
    """How a training ended.

    Attributes:
        code: Exit code: 0 when done or stopped by SIGTERM, 2, 3, or 130 after SIGINT.
        stopped: Whether it was asked to stop; it can be resumed.
    """

    code: int
    stopped: bool


def supervise(config: RunConfig, path: Path | None = None) -> Ending:
    """Run a whole training on this machine until it is done.

    Args:
        config: The run.
        path: The run directory, if not the configured one.

    Returns:
        How it ended; the error behind 2 and 3 has been printed.

    Raises:
        ConfigError: What would fail, found before anything was started.
        RunLockedError: The run is going on elsewhere.
        PeerFailedError: A process failed too often.
    """
    preflight(config, path or config.run.path)
    directory, run = own_run(config, path)
    with directory:
        # So that a store that cannot be used is reported before anything is started.
        run.open_store().close()
        with ProgressPrinter(_num_updates(config), SystemClock()) as printer:
            troubles = Troubles(
                run.layout.logs,
                {name: settings.entrypoint for name, settings in config.environment.items()},
                _say,
                SystemClock(),
            )
            supervisor = _supervisor(run, directory, printer, troubles)
            verb = "resuming" if directory.resumed else "starting"
            _say(f"{verb} {run.layout.path}, which compiles first; logs in {run.layout.logs}")
            with _signals_to(supervisor):
                code = supervisor.run()
        if code in (2, 3) and supervisor.first_cause:
            causes = troubles.sentences() if code == 3 else []
            typer.echo(f"error: {'. '.join([supervisor.first_cause, *causes])}", err=True)
        return Ending(code, supervisor.stopped)


def processes(run: Run) -> Iterator[ProcessSpec]:
    """Yield the processes of a run: who leads, on which cores, with which command."""
    config = run.config
    learner_cpus, other_cpus = divide_cpus(
        sorted(os.sched_getaffinity(0)), config.launch.learner_cpus, config.launch.other_cpus
    )
    port = config.generator.port or free_port()
    vllm = config.generator.vllm
    addresses = vllm or (base_address(config.generator.host, port),)
    generators = [word for address in addresses for word in ("--generator", address)]
    directory = str(run.layout.path)
    yield from learner_processes(run, learner_cpus, other_cpus)
    listening = () if vllm else ("--port", str(port))
    yield ProcessSpec(name="generator", argv=_command("generate", directory, *listening), cpus=other_cpus)
    for index in range(config.actors.processes):
        name = f"actor-{index}"
        yield ProcessSpec(
            name=name,
            argv=_command("act", directory, *generators, "--name", name),
            cpus=other_cpus,
        )
    if config.learner.eval_every:
        yield ProcessSpec(
            name="evaluator",
            argv=_command("eval", directory, *generators, "--follow"),
            cpus=other_cpus,
        )


def learner_processes(run: Run, cpus: tuple[int, ...], other_cpus: tuple[int, ...]) -> Iterator[ProcessSpec]:
    """Yield the processes of a run's learner; of several, each gets its share of cores and accelerators."""
    number, devices = run.config.learner.processes, run.config.mesh.num_devices
    env = {OTHER_CPUS_VARIABLE: ",".join(map(str, other_cpus)), **with_huge_pages(os.environ)}
    if number == 1:
        argv = _command("learn", str(run.layout.path))
        yield ProcessSpec(name="learner", argv=argv, cpus=cpus, env=env, leads=True)
        return
    address, token = f"127.0.0.1:{free_port(2)}", secrets.token_hex(32)
    for index in range(number):
        held = range(index * devices // number, (index + 1) * devices // number)
        yield ProcessSpec(
            name="learner" if index == 0 else f"learner-{index}",
            argv=_command(
                *("learn", str(run.layout.path), "--process-id", str(index)),
                *("--num-processes", str(number), "--coordinator", address),
            ),
            cpus=share_of(cpus, index, number),
            env=env | {TOKEN_VARIABLE: token, "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, held))},
            leads=index == 0,
            gang="learner",
        )


def farewell(path: Path) -> str:
    """Return what came out of a run that ended, and what to do with it; a few lines of text."""
    summary = read_summary(RunLayout(path).summary, RunSummary)
    verdict = verdict_of(load_run(path))
    return "\n".join(
        (
            f"{summary.steps} steps; learner busy {_percent(summary.busy)}, "
            f"goodput {_percent(summary.goodput)}; "
            f"reward {_figure(summary.reward_first)} at first, {_figure(summary.reward_last)} at last",
            f"trajectories: {summary.accepted} accepted, {summary.trained} trained, "
            f"{summary.discarded} discarded, {summary.lost} lost, {summary.repeated} repeated",
            f"verdict: {verdict.sentence}",
            *([f"tokens: {verdict.life}"] if verdict.life else []),
            f"the run is in {path}: summary.json, metrics.jsonl, logs/",
            f"next: forebay report {path}",
            f"      forebay eval {path}",
            f"      forebay export {path} --to MODEL_DIRECTORY",
        )
    )


def _num_updates(config: RunConfig) -> int | None:
    return None if config.learner.max_time_s else config.learner.steps * config.updates_per_batch


def _supervisor(
    run: Run, directory: RunDirectory, printer: ProgressPrinter, troubles: Troubles
) -> Supervisor:
    follower = Follower(run.layout.metrics, printer)

    def look() -> None:
        follower.look()
        troubles.look()

    def newest_step() -> int:
        follower.look()
        return follower.newest_step

    return Supervisor(
        list(processes(run)),
        run.layout.logs,
        run.config.launch,
        SystemClock(),
        on_tick=look,
        report=_say,
        inherited=(directory.fileno(),),
        step_s=lambda: tuple(follower.step_s),
        newest_step=newest_step,
    )


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "forebay", *arguments)


@contextmanager
def _signals_to(supervisor: Supervisor) -> Iterator[None]:
    previous = {
        number: signal.signal(number, lambda received, _: supervisor.request_stop(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
