"""What can be known to fail before anything is made or started, checked up front."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from forebay.cli.runs import builtin_or_path, resolve_model
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.envs.registry import load_environment, load_task_sets
from forebay.errors import ConfigError
from forebay.launch import divide_cpus
from forebay.learner.run_directory import RunLayout
from forebay.models.config import ModelConfig
from forebay.trajectory import Task

_LEARNER_MODULES = ("jax", "jaxtyping", "ml_dtypes", "optax", "safetensors")
# Master weights and two moments of Adam, float32.
_STATE_BYTES_PER_PARAMETER = 12
_WEIGHT_BYTES_PER_PARAMETER = 4
_OTHER_BYTES = 64 << 20


def preflight(config: RunConfig, path: Path) -> None:
    """Check everything that the processes of a run need; nothing is made or started.

    Args:
        config: The run.
        path: Its directory; may not exist yet.

    Raises:
        ConfigError: What would fail, and what mends it.
    """
    require_learner_packages()
    check_environments(config)
    model = check_model_files(config)
    divide_cpus(sorted(os.sched_getaffinity(0)), config.launch.learner_cpus, config.launch.other_cpus)
    check_address(config)
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


def check_environments(config: RunConfig) -> None:
    """Import every environment, make one of each that does not block, and read their tasks.

    Raises:
        ConfigError: One cannot be imported or made, or its tasks are missing or malformed.
    """
    clock = SystemClock()
    for settings in config.environment.values():
        load_environment(settings, clock)
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
    from forebay.models.checkpoint_io import check_model

    model, _ = resolve_model(config)
    if config.model.path is not None:
        check_model(builtin_or_path(config.model.path), model)
    return model


def check_address(config: RunConfig) -> None:
    """Check that the generator can listen where it should, and that its token is there.

    Raises:
        ConfigError: The port is taken, the address is not this machine's, or the token's variable is not set.
    """
    settings = config.generator
    if settings.token_env and not os.environ.get(settings.token_env):
        raise ConfigError(
            f"the environment variable {settings.token_env} holds no token",
            remedy=f"Set it, for instance: export {settings.token_env}=$(openssl rand -hex 16)",
        )
    if not settings.port:
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"the generator cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            remedy="Set generator.port=0 to take any free one, or end the process that holds it.",
        ) from None


def check_disk(config: RunConfig, path: Path, model: ModelConfig) -> None:
    """Check that checkpoints and published weights fit the disk.

    Raises:
        ConfigError: They do not; the message holds the arithmetic.
    """
    resumed = RunLayout(path).manifest.exists()
    # A run that goes on has its files already; it needs room for the newest before the oldest goes.
    checkpoints = 1 if resumed else config.learner.keep_checkpoints + 2
    versions = 1 if resumed else config.weights.keep_versions + 1
    state_bytes = _STATE_BYTES_PER_PARAMETER * model.num_parameters
    weight_bytes = _WEIGHT_BYTES_PER_PARAMETER * model.num_parameters
    needed_bytes = checkpoints * state_bytes + versions * weight_bytes + _OTHER_BYTES
    free_bytes = shutil.disk_usage(_existing(path.absolute())).free
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"too little space on the disk of {path}",
            got=f"{free_bytes} bytes free",
            limit=f">= {checkpoints} checkpoints x {state_bytes} + {versions} versions x {weight_bytes} + "
            f"{_OTHER_BYTES} = {needed_bytes} bytes",
            remedy="Free space, set run.directory to another disk, or lower learner.keep_checkpoints.",
        )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
