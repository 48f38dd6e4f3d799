"""What can be known to fail before anything is made or started, checked up front."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from forebay.cli.runs import builtin_or_path, resolve_model
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.envs.registry import load_environment, load_task_sets, try_environment
from forebay.errors import ConfigError
from forebay.launch import divide_cpus
from forebay.launch.probes.devices import Seen, ask_devices
from forebay.launch.probes.interpreter import look_at_copies
from forebay.launch.probes.network import look_at_port
from forebay.learner.checkpoint_places import check_place
from forebay.learner.run_directory import RunLayout
from forebay.learner.settings import is_bucket
from forebay.models.config import ModelConfig
from forebay.models.lora_layout import check_targets, num_adapter_parameters
from forebay.models.mesh_axes import check_divisible, check_num_devices
from forebay.models.platforms import KERNELS, check_attention
from forebay.store.file_systems import existing, refuse_network_filesystem
from forebay.telemetry.sinks import check_sinks
from forebay.trajectory import Task

_LEARNER_MODULES = ("jax", "jaxtyping", "ml_dtypes", "optax", "safetensors")
# Master weights and two moments of Adam, float32.
_STATE_BYTES_PER_PARAMETER = 12
_WEIGHT_BYTES_PER_PARAMETER = 4
_OTHER_BYTES = 64 << 20


def preflight(config: RunConfig, path: Path, *, starts_here: bool = True) -> None:
    """Check everything that the processes of a run need; nothing is made or started.

    Args:
        config: The run.
        path: Its directory; may not exist yet.
        starts_here: Whether they start on this machine now: then the vLLM servers that it names must run,
            and the devices be there.

    Raises:
        ConfigError: What would fail, and what mends it.
    """
    check_package()
    require_learner_packages()
    check_telemetry(config)
    check_environments(config)
    model = check_model_files(config)
    check_divisible(model, config.mesh.model_dump())
    if starts_here:
        check_devices(config)
        check_place(config.learner)
    divide_cpus(sorted(os.sched_getaffinity(0)), config.launch.learner_cpus, config.launch.other_cpus)
    check_token(config)
    if not config.generator.vllm:
        check_address(config)
    elif starts_here:
        from forebay.cli.control import check_servers

        check_servers(config, model)
    check_writable(path)
    refuse_network_filesystem(config.store.path or path)
    check_disk(config, path, model)


def require_learner_packages(modules: Sequence[str] = _LEARNER_MODULES) -> None:
    """Refuse to go on without the packages of learner and generator; none of them is imported.

    Args:
        modules: What has to be there.

    Raises:
        ConfigError: One is missing; the message names it and the extra that has it.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"learner and generator need packages that are not installed: {', '.join(missing)}",
            remedy="Install the extra: pip install 'forebay[learner]' (or cuda, or tpu).",
        )


def check_devices(config: RunConfig) -> None:
    """Check that JAX finds devices here that the settings can run on; it is asked in a process of its own.

    Settings that every machine can run are not asked about. Where no answer comes, the learner finds out: its
    devices may be held by a run that is about to end, or wait for those of other hosts.

    Raises:
        ConfigError: They cannot run this kind of attention, or are fewer than the mesh.
    """
    several = config.mesh.num_devices > 1 and config.learner.processes == 1
    if config.compute.attention not in KERNELS and not several:
        return
    seen = ask_devices()
    if isinstance(seen, Seen):
        check_attention(config.compute.attention, seen.backend, seen.capability)
        if several:
            check_num_devices(config.mesh, seen.count)


def check_environments(config: RunConfig) -> None:
    """Import every environment, make one of each, and read their tasks.

    Raises:
        ConfigError: One cannot be imported or made, or its tasks are missing or malformed.
    """
    clock = SystemClock()
    for settings in config.environment.values():
        asyncio.run(try_environment(load_environment(settings, clock)))
        load_task_sets(settings)
    if config.learner.eval_every:
        held_out_tasks(config, 1)


def held_out_tasks(config: RunConfig, count: int) -> tuple[Task, ...]:
    """Return held-out tasks, the same ones every time, environments taking turns.

    Raises:
        ConfigError: Nothing is held out.
    """
    sets = [load_task_sets(settings).held_out for settings in config.environment.values()]
    longest = max(map(len, sets))
    tasks = tuple(tasks[index] for index in range(longest) for tasks in sets if index < len(tasks))[:count]
    if not tasks:
        raise ConfigError(
            "no task is held out to evaluate on",
            remedy="Raise environment.NAME.holdout_fraction, or set learner.eval_every=0.",
        )
    return tasks


def check_model_files(config: RunConfig) -> ModelConfig:
    """Check configuration, tokenizer and the headers of the weights; return the model's shape.

    Raises:
        ModelError: One is missing, damaged or not supported, or they do not belong together.
    """
    from forebay.cli.reference_files import check_reference_files
    from forebay.models.checkpoint_io import check_model

    model, _ = resolve_model(config)
    if config.model.path is not None:
        check_model(builtin_or_path(config.model.path), model)
    check_adapters(config, model)
    check_reference_files(config, model)
    return model


def check_adapters(config: RunConfig, model: ModelConfig) -> None:
    """Check that a model can have the adapters that are asked for, and the headers of those to begin with.

    Raises:
        ConfigError: The model lacks a projection, or the adapters are others than the settings ask for.
        ModelError: The adapters are missing, damaged, not supported, or belong to another model.
    """
    from forebay.models.lora_files import check_adapter_files

    lora = config.model.adapters
    if lora is None:
        return
    check_targets(lora, model)
    if lora.path is not None:
        check_adapter_files(Path(lora.path), model, lora)


def check_token(config: RunConfig) -> None:
    """Check that the generator's token is there, if it has one.

    Raises:
        ConfigError: The variable that should hold it is not set.
    """
    variable = config.generator.token_env
    if variable and not os.environ.get(variable):
        raise ConfigError(
            f"the environment variable {variable} holds no token",
            remedy=f"Set it, for instance: export {variable}=$(openssl rand -hex 16)",
        )


def check_address(config: RunConfig) -> None:
    """Check that the generator can listen where it should.

    Raises:
        ConfigError: The port is taken, or the address is not this machine's.
    """
    settings = config.generator
    for finding in look_at_port(settings.host, settings.port, needed=True):
        if finding.level == "bad":
            raise ConfigError(f"the generator cannot listen on {finding.seen}", remedy=finding.remedy)


def check_telemetry(config: RunConfig) -> None:
    """Check that metrics can go where they should.

    Raises:
        ConfigError: A package is missing, or the port to serve them on is taken.
    """
    check_sinks(config.telemetry)
    if config.telemetry.prometheus_port is None:
        return
    for finding in look_at_port("127.0.0.1", config.telemetry.prometheus_port, needed=True):
        if finding.level == "bad":
            raise ConfigError(
                f"telemetry.prometheus_port: metrics cannot be served on {finding.seen}",
                remedy="Choose another port, or end the process that holds it.",
            )


def check_package() -> None:
    """Check that every process of a run will import the same forebay.

    Raises:
        ConfigError: There is a second one on the path.
    """
    for finding in look_at_copies():
        if finding.level == "bad":
            raise ConfigError(finding.seen, remedy=finding.remedy)


def check_writable(path: Path) -> None:
    """Check that a run directory can be made, or written if it is there.

    Raises:
        ConfigError: It cannot; the message says why.
    """
    place = existing(path)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to {path}: {place}: {os.strerror(error.errno or 0)}",
            remedy="Set run.directory to a directory that you may write to.",
        ) from None


def check_disk(config: RunConfig, path: Path, model: ModelConfig) -> None:
    """Check that checkpoints and published weights fit their disks; a bucket is not asked for room.

    Raises:
        ConfigError: They do not; the message holds the arithmetic.
    """
    resumed = RunLayout(path).manifest.exists()
    # A run that goes on has its files already; it needs room for the newest before the oldest goes.
    checkpoints = 1 if resumed else config.learner.keep_checkpoints + 2
    versions = 1 if resumed else config.weights.keep_versions + 1
    moves = config.objective.kl_coef > 0 and config.reference.update_every > 0
    trained = published = model.num_parameters
    base_bytes = 0
    if config.model.adapters is not None:
        trained = num_adapter_parameters(model, config.model.adapters)
        if config.weights.adapters == "separate":
            published, base_bytes = trained, _WEIGHT_BYTES_PER_PARAMETER * model.num_parameters
    state_bytes = (_STATE_BYTES_PER_PARAMETER + 4 * moves) * trained
    weight_bytes = _WEIGHT_BYTES_PER_PARAMETER * published
    other_bytes = _OTHER_BYTES + base_bytes
    of_checkpoints = _Room(checkpoints * state_bytes, f"{checkpoints} checkpoints x {state_bytes}")
    of_others = _Room(
        versions * weight_bytes + other_bytes, f"{versions} versions x {weight_bytes} + {other_bytes}"
    )
    together = _Room(
        of_checkpoints.num_bytes + of_others.num_bytes, f"{of_checkpoints.sum} + {of_others.sum}"
    )
    elsewhere = config.learner.checkpoint_path
    if elsewhere is None:
        _require_room(path, together, "run.directory")
        return
    if not is_bucket(elsewhere):
        place = Path(elsewhere)
        shared = existing(place).stat().st_dev == existing(path).stat().st_dev
        _require_room(place, together if shared else of_checkpoints, "learner.checkpoint_path")
    _require_room(path, of_others, "run.directory")


class _Room(NamedTuple):
    num_bytes: int
    sum: str


def _require_room(path: Path, room: _Room, setting: str) -> None:
    free_bytes = shutil.disk_usage(existing(path)).free
    if free_bytes < room.num_bytes:
        raise ConfigError(
            f"too little space on the disk of {path}",
            got=f"{free_bytes} bytes free",
            limit=f">= {room.sum} = {room.num_bytes} bytes",
            remedy=f"Free space, set {setting} to another disk, or lower learner.keep_checkpoints.",
        )
