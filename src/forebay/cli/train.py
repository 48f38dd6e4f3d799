"""`forebay train`: all processes of a run on this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.configuration import ConfigPath, Overrides
from forebay.cli.following import Follower
from forebay.cli.roles import OTHER_CPUS_VARIABLE
from forebay.cli.runs import Run, own_run
from forebay.clock import SystemClock
from forebay.config import RunConfig, load_config
from forebay.config.dump import to_toml
from forebay.errors import ConfigError
from forebay.launch import ProcessSpec, Supervisor, divide_cpus
from forebay.telemetry.progress import ProgressPrinter


def train(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything and print the configuration; start nothing.")] = False,
) -> None:
    """Train on this machine: learner, generator and actors as processes of their own, restarted when they die."""
    settings = load_config(config, overrides or [])
    if dry_run:
        typer.echo(to_toml(settings))
        return
    code = supervise(settings)
    if code:
        raise typer.Exit(code)


def supervise(config: RunConfig, path: Path | None = None) -> int:
    """Run a whole training on this machine until it is done.

    Args:
        config: The run.
        path: The run directory, if not the configured one.

    Returns:
        The exit code: 0 when done or stopped in order, 2, 3 or 130.

    Raises:
        RunLockedError: The run is going on elsewhere.
        PeerFailedError: A process failed too often.
    """
    directory, run = own_run(config, path)
    with directory:
        clock = SystemClock()
        with ProgressPrinter(config.learner.steps, clock) as printer:
            follower = Follower(run.layout.metrics, printer)
            supervisor = Supervisor(
                list(processes(run)), run.layout.logs, config.launch, clock, on_tick=follower.look
            )
            with _signals_to(supervisor):
                code = supervisor.run()
        if code in (2, 3) and supervisor.first_cause:
            typer.echo(f"error: {supervisor.first_cause}", err=True)
        return code


def processes(run: Run) -> Iterator[ProcessSpec]:
    """Yield the processes of a run: who leads, on which cores, with which command."""
    config = run.config
    learner_cpus, other_cpus = divide_cpus(
        sorted(os.sched_getaffinity(0)), config.launch.learner_cpus, config.launch.other_cpus
    )
    port = config.generator.port or free_port()
    _refuse_taken_port(config.generator.host, port)
    address = f"http://{config.generator.host}:{port}"
    directory = str(run.layout.path)
    yield ProcessSpec(
        name="learner",
        argv=_command("learn", directory),
        cpus=learner_cpus,
        env={OTHER_CPUS_VARIABLE: ",".join(map(str, other_cpus))},
        leads=True,
    )
    yield ProcessSpec(
        name="generator", argv=_command("generate", directory, "--port", str(port)), cpus=other_cpus
    )
    for index in range(config.actors.processes):
        name = f"actor-{index}"
        yield ProcessSpec(
            name=name,
            argv=_command("act", directory, "--generator", address, "--name", name),
            cpus=other_cpus,
        )
    if config.learner.eval_every:
        yield ProcessSpec(
            name="evaluator",
            argv=_command("eval", directory, "--generator", address, "--follow"),
            cpus=other_cpus,
        )


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _refuse_taken_port(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConfigError(
            f"the generator cannot listen on {host}:{port}: {error.strerror}",
            remedy="Set generator.port=0 to take any free one, or end the process that holds it.",
        ) from None


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
