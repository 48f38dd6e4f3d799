"""The body of `forebay doctor`: which probes a machine, a configuration or a run is looked at with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from forebay.cli import preflight
from forebay.cli.roles import configure_jax
from forebay.cli.runs import join_run
from forebay.clock import Clock
from forebay.config import RunConfig, load_config
from forebay.launch import divide_cpus
from forebay.launch.probes import (
    Finding,
    Probe,
    devices,
    interpreter,
    leftovers,
    machine,
    network,
    storage,
)
from forebay.learner.checkpoint_places import check_place
from forebay.learner.run_directory import RunLayout

_DEFAULT_RUNS = Path("runs")
# An environment's packages may take their time to be imported.
_CHECK_LIMIT_S = 12.0


class Subject(NamedTuple):
    """What a machine is looked at for.

    Attributes:
        config: The run; None for any run.
        run: Its directory; None if it has none yet.
        runs: The directory that holds runs.
    """

    config: RunConfig | None
    run: Path | None
    runs: Path


def subject_of(target: Path | None, directory: Path | None) -> Subject:
    """Find out whether a target is a run or a configuration.

    Args:
        target: A run directory, or a TOML file; None for any run.
        directory: Where runs are, if not where the target says.

    Raises:
        ConfigError: The target is neither, or its configuration cannot work.
    """
    if target is None:
        return Subject(None, None, directory or _DEFAULT_RUNS)
    if target.is_dir():
        return Subject(join_run(target).config, target, directory or target.absolute().parent)
    config = load_config(target)
    return Subject(config, None, directory or Path(config.run.directory))


def probes_for(subject: Subject, clock: Clock) -> Iterator[Probe]:
    """Yield a probe for each thing that a run depends on, most general first."""
    yield Probe("python", interpreter.look_at_python)
    yield Probe("forebay", interpreter.look_at_copies)
    yield Probe("packages", interpreter.look_at_packages)
    yield from _machine_probes(subject.config or RunConfig(), clock)
    yield from _place_probes(subject, clock)
    yield from _network_probes(subject)
    if subject.config is not None:
        yield from _run_probes(subject.config, subject.run or subject.config.run.path)
    yield Probe("processes", leftovers.look_at_processes)
    yield Probe("runs", lambda: leftovers.look_at_runs(subject.runs))
    yield Probe("extras", interpreter.look_at_extras)


def _machine_probes(config: RunConfig, clock: Clock) -> Iterator[Probe]:
    # Several processes of a learner may be on several hosts, or make virtual devices on a CPU.
    num_devices = config.mesh.num_devices if config.learner.processes == 1 else 1
    wanted = num_devices, config.compute.attention
    yield Probe("devices", lambda: devices.look_at_devices(*wanted), devices.LIMIT_S + 1.0)
    yield Probe("cores", machine.look_at_cores)
    yield Probe("memory", machine.look_at_memory)
    yield Probe("shared memory", machine.look_at_shared_memory)
    yield Probe("open files", lambda: machine.look_at_open_files(_num_connections(config)))
    yield Probe("clock", lambda: machine.look_at_clock(clock))
    yield Probe("encoding", interpreter.look_at_encoding)


def _num_connections(config: RunConfig) -> int:
    """Return the sockets and pipes of one actor process: a call, and the three pipes of a worker."""
    is_blocking = any(environment.blocking for environment in config.environment.values())
    return config.actors.most_episodes * (4 if is_blocking else 1)


def _place_probes(subject: Subject, clock: Clock) -> Iterator[Probe]:
    place = subject.run or subject.runs
    if subject.config is not None and subject.config.store.path is not None:
        place = subject.config.store.path
    yield Probe("disk", lambda: storage.look_at_disk(place))
    yield Probe("fsync", lambda: storage.look_at_writing(place, clock))
    yield Probe("store", lambda: storage.look_at_store(place))
    yield Probe("compile cache", lambda: storage.look_at_cache(_compile_cache()))


def _network_probes(subject: Subject) -> Iterator[Probe]:
    yield Probe("loopback", network.look_at_loopback)
    if subject.run is not None and leftovers.is_locked(RunLayout(subject.run).lock):
        return  # its own generator holds the port
    generator = (subject.config or RunConfig()).generator
    if generator.vllm:
        return  # nothing of forebay listens
    needed = subject.config is not None
    yield Probe("port", lambda: network.look_at_port(generator.host, generator.port, needed=needed))


def _run_probes(config: RunConfig, path: Path) -> Iterator[Probe]:
    """Yield what can be known to fail for one run, each as a probe of its own."""
    launch = config.launch
    yield _check("environments", lambda: preflight.check_environments(config), "can be made, with tasks")
    yield _check("model", lambda: preflight.check_model_files(config), "configuration and weights fit")
    yield _check("token", lambda: preflight.check_token(config), "there, or not asked for")
    if config.generator.vllm:
        yield _check("vllm", lambda: _check_servers(config), "every server runs as forebay needs it")
    yield _check(
        "room",
        lambda: preflight.check_disk(config, path, preflight.check_model_files(config)),
        "checkpoints and weights fit the disk",
    )
    if config.learner.checkpoint_path is not None:
        yield _check("checkpoint place", lambda: check_place(config.learner), "takes what a run does to it")
    yield _check(
        "placement",
        lambda: divide_cpus(sorted(os.sched_getaffinity(0)), launch.learner_cpus, launch.other_cpus),
        "its cores are there",
    )


def _check_servers(config: RunConfig) -> None:
    from forebay.cli.control import check_servers

    check_servers(config, preflight.check_model_files(config))


def _check(what: str, check: Callable[[], object], fine: str) -> Probe:
    def look() -> list[Finding]:
        check()
        return [Finding(what, "ok", fine)]

    return Probe(what, look, _CHECK_LIMIT_S)


def _compile_cache() -> Path:
    configure_jax()
    return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
