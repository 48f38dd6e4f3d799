"""Run directories as the commands see them: made from a configuration, or opened to join a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from forebay.chat import Chat, small_chat, write_small_chat
from forebay.cli.configuration import differences
from forebay.clock import SystemClock
from forebay.config import RunConfig, stored_config
from forebay.config.dump import json_tree
from forebay.errors import ConfigError, ModelError
from forebay.launch.placement import PARENT_VARIABLE
from forebay.learner.run_directory import RunDirectory, RunLayout, open_run, read_run_manifest
from forebay.models.config import CONFIG_FILE, ModelConfig
from forebay.models.config import load_config as load_model_config
from forebay.store import open_store
from forebay.store.rules import RuleStore

ExportDtype = Literal["float32", "bfloat16"]
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
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
    "learner.steps",
    "learner.max_time_s",
    "learner.no_progress_s",
    "learner.max_nonfinite_steps",
    "learner.publish_every",
    "learner.checkpoint_every",
    "learner.keep_checkpoints",
    "learner.eval_every",
    "learner.eval_tasks",
    "learner.warmup_steps",
)
# Exceptions: what the model is asked, how long its answers are, and where the trajectories lie.
_MUST_STAY = (
    "generator.context:",
    "actors.temperature:",
    "actors.max_turn_tokens:",
    "store.path:",
    "store.engine:",
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

    def open_store(self) -> RuleStore:
        """Open the run's store."""
        path = self.config.store.path or self.layout.store
        return open_store(self.config.store.model_copy(update={"path": path}), self.run_id, SystemClock())


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
    directory = open_run(path, config=json_tree(config), seeds={"run": config.run.seed}, clock=SystemClock())
    try:
        _prepare(directory, path, config, model)
    except BaseException:
        directory.close()
        raise
    return directory, Run(RunLayout(path.absolute()), directory.run_id, config, chat, model)


def _prepare(directory: RunDirectory, path: Path, config: RunConfig, model: ModelConfig) -> None:
    """Check a run that is there against the configuration, and give it its model files."""
    if directory.resumed:
        before = stored_config(directory.manifest.config, directory.layout.manifest)
        refuse_other_settings(path, before, config)
        _write_manifest(directory, config)
    if not (path / "model").exists():
        partial = path / ".partial-model"
        write_model_files(partial, config, model)
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
        chat = small_chat() if settings.tokenizer == "small" else Chat.load(Path(settings.tokenizer))
        return _new_model(config, chat), chat
    directory = builtin_or_path(settings.path)
    chat = Chat.load(directory if settings.tokenizer == "small" else Path(settings.tokenizer))
    model = load_model_config(directory, chat.vocabulary)
    if config.generator.context > model.max_position:
        raise ModelError(
            "generator.context exceeds what the model was made for",
            got=config.generator.context,
            limit=f"max_position_embeddings={model.max_position}",
            remedy="Lower generator.context.",
        )
    return model, chat


def builtin_or_path(name: str) -> Path:
    """Return the directory of a model: a path, or `builtin:NAME` for one that ships with forebay.

    Raises:
        ModelError: There is no such directory.
    """
    kind, _, rest = name.partition(":")
    directory = Path(__file__).parent.parent / "assets" / rest if kind == "builtin" else Path(name)
    if not directory.is_dir():
        raise ModelError(
            f"no model directory {name}", remedy="Check model.path: it needs config.json and safetensors."
        )
    return directory


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


def write_model_files(
    directory: Path, config: RunConfig, model: ModelConfig, dtype: ExportDtype = "float32"
) -> None:
    """Write `config.json` and the tokenizer of a run's model into a new directory, without weights.

    Args:
        directory: Made anew.
        config: Says where the tokenizer is.
        model: The shape.
        dtype: Type that the weights will have.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    small = config.model.tokenizer == "small"
    if small and config.model.path is None:
        write_small_chat(directory)
    else:
        source = builtin_or_path(config.model.path or "") if small else Path(config.model.tokenizer)
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
    write_model_config(directory, model, dtype)


def write_model_config(directory: Path, model: ModelConfig, dtype: ExportDtype) -> None:
    """Write `config.json`, which names the type that the weights have."""
    entry = model.to_hf() | {"torch_dtype": dtype}
    (directory / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(entry)))


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
