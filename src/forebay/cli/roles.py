"""`forebay learn`, `generate` and `act`: the processes of a run, one command each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from pathlib import Path
from typing import Annotated, Final

import typer

from forebay.cli.completing import complete_run
from forebay.cli.preflight import require_learner_packages
from forebay.cli.runs import Run, join_run, supervised_by_parent
from forebay.cli.tracing import open_tracer
from forebay.errors import ConfigError
from forebay.launch.placement import keep_freed_memory, share_one_heap
from forebay.learner.run_directory import open_run
from forebay.telemetry.logs import setup_logging

RunPath = Annotated[
    Path,
    typer.Argument(
        help="Run directory, made by `forebay train`.", show_default=False, autocompletion=complete_run
    ),
]
OTHER_CPUS_VARIABLE = "FOREBAY_OTHER_CPUS"
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LINUX_FIRST_PORT: Final = 32768
_NUM_CANDIDATES: Final = 8192


def learn(
    run: RunPath,
    process_id: Annotated[
        int, typer.Option(envvar="FOREBAY_PROCESS_ID", help="Which process of the learner this is; 0 leads.")
    ] = 0,
    num_processes: Annotated[
        int | None,
        typer.Option(envvar="FOREBAY_NUM_PROCESSES", help="How many there are, not learner.processes."),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar=["FOREBAY_COORDINATOR", "JAX_COORDINATOR_ADDRESS"],
            help="HOST:PORT of process 0, if there are several; it uses that port and the next one.",
        ),
    ] = None,
) -> None:
    """Train the model of a run on what actors put into its store.

    A learner of several processes: the same command on every host, with the number of the process. All must
    see the run directory, and know the same FOREBAY_GANG_TOKEN.

    Examples:
        forebay learn runs/calculator
        forebay learn runs/calculator --process-id 1 --num-processes 4 --coordinator 10.0.0.1:9410
    """
    from forebay.clock import SystemClock

    joined = join_run(run)
    require_learner_packages()
    num_processes = num_processes or joined.config.learner.processes
    setup_logging("learner" if process_id == 0 else f"learner-{process_id}")
    place = None if num_processes == 1 else (process_id, num_processes, coordinator)
    if supervised_by_parent() or process_id > 0:
        _learn(joined, place)
        return
    with open_run(run, config={}, seeds={}, clock=SystemClock(), mode="resume"):
        _learn(joined, place)


def generate(
    run: RunPath,
    port: Annotated[int | None, typer.Option(help="Port to listen on instead of generator.port.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on instead of generator.host.")] = None,
) -> None:
    """Serve completions of a run's newest weights over HTTP, or keep its vLLM servers at them.

    Example:
        forebay generate runs/calculator --port 8100
    """
    joined = join_run(run)
    setup_logging("generator")
    if joined.config.generator.vllm:
        if port is not None or host is not None:
            raise ConfigError(
                "with generator.vllm set, forebay generate listens nowhere",
                remedy="Leave out --port and --host.",
            )
        from forebay.cli.control import control_servers

        control_servers(joined)
        return
    require_learner_packages()
    configure_jax()
    from forebay.generation.run import run_server

    changes = {k: v for k, v in (("port", port), ("host", host)) if v is not None}
    settings = joined.config.generator.model_copy(update=changes)
    keep_memory_on_cpus()
    run_server(
        joined.model,
        joined.layout.weights,
        settings,
        announce=lambda address: typer.echo(f"generator at {address}", err=True),
        tracer=open_tracer(joined, "generator"),
    )


def act(
    run: RunPath,
    generator: Annotated[
        list[str] | None, typer.Option(help="Address of a generator; may be given several times.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of this process in leases and logs.")] = "actor",
) -> None:
    """Run episodes: claim tasks from a run's store, act, and put the trajectories back.

    Example:
        forebay act runs/calculator --generator http://127.0.0.1:8100 --name actor-0
    """
    from forebay.cli.acting import run_actor_process

    joined = join_run(run)
    setup_logging(name)
    asyncio.run(run_actor_process(joined, generator_addresses(joined, generator), name))


def generator_addresses(run: Run, given: list[str] | None) -> list[str]:
    """Return where the generators are: as given, or where the configuration says.

    Raises:
        ConfigError: The configured port is chosen by the system, so that nobody else can know it.
    """
    if given:
        return given
    settings = run.config.generator
    if settings.vllm:
        return list(settings.vllm)
    if settings.port == 0:
        raise ConfigError(
            "the generator's port is not known",
            got="generator.port=0",
            remedy="Give --generator http://127.0.0.1:PORT.",
        )
    return [base_address(settings.host, settings.port)]


def base_address(host: str, port: int) -> str:
    """Return the base address of a generator.

    Example:
        >>> base_address("::1", 8100)
        'http://[::1]:8100'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port(number: int = 1) -> int:
    """Return a loopback port that is free now, and that the system gives to no outgoing connection.

    Args:
        number: How many ports from it on must be free.

    A generator listens only once it has imported JAX, and again after a restart; meanwhile a connection of
    any other process could be given a port from the system's own range.
    """
    stop = _first_outgoing_port()
    candidates = range(max(1024, stop - _NUM_CANDIDATES), stop)
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        with contextlib.suppress(OSError), contextlib.ExitStack() as servers:
            for offset in range(number):
                servers.enter_context(socket.create_server(("127.0.0.1", port + offset)))
            return port
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _first_outgoing_port() -> int:
    try:
        return int(_PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LINUX_FIRST_PORT


def configure_jax() -> None:
    """Set what JAX reads once, before it is imported: where compiled programs are kept, and who allocates."""
    share_one_heap()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forebay" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")


def keep_memory_on_cpus() -> None:
    """Let programs that run on CPUs find their temporary memory where they left it; see `keep_freed_memory`.

    Raises:
        ConfigError: There is no device.
    """
    from forebay.models.sharding import find_devices

    if find_devices()[0].platform == "cpu":
        keep_freed_memory()


def _learn(run: Run, place: tuple[int, int, str | None] | None) -> None:
    configure_jax()
    from forebay.cli.learning import run_learner
    from forebay.learner.gang.joining import place_of

    others = os.environ.get(OTHER_CPUS_VARIABLE, "")
    run_learner(
        run,
        background_cpus=tuple(int(cpu) for cpu in others.split(",") if cpu),
        place=None if place is None else place_of(*place, os.environ),
    )
