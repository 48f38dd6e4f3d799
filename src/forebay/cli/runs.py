"""Run directories as the commands see them: made from a configuration, or opened to join a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from forebay.chat import Chat, small_chat, write_small_chat
from forebay.cli.configuration import differences
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.errors import ConfigError, ModelError
from forebay.launch.placement import PARENT_VARIABLE
from forebay.learner.run_directory import RunDirectory, RunLayout, open_run, read_run_manifest
from forebay.models.config import CONFIG_FILE, ModelConfig
from forebay.models.config import load_config as load_model_config
from forebay.store import open_store
from forebay.store.rules import RuleStore

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
# What may change between a start and a resume: nothing that the weights depend on.
_MAY_CHANGE = ("launch.", "generator.", "actors.", "learner.steps", "learner.max_time_s", "learner.no_progress_s")


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
    config = RunConfig.model_validate(manifest.config)
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
    directory = open_run(
        path, config=config.model_dump(mode="json"), seeds={"run": config.run.seed}, clock=SystemClock()
    )
    if directory.resumed:
        _refuse_other_settings(path, RunConfig.model_validate(directory.manifest.config), config)
        _write_manifest(directory, config)
    if not (path / "model").exists():
        partial = path / ".partial-model"
        write_model_files(partial, config, model)
        partial.rename(path / "model")
    return directory, Run(RunLayout(path.absolute()), directory.run_id, config, chat, model)


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


def write_model_files(directory: Path, config: RunConfig, model: ModelConfig) -> None:
    """Write `config.json` and the tokenizer of a run's model into a new directory; weights come from elsewhere."""
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
    (directory / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(model.to_hf())))


def _refuse_other_settings(path: Path, before: RunConfig, now: RunConfig) -> None:
    changed = [line for line in differences(before, now) if not line.startswith(_MAY_CHANGE)]
    if changed:
        raise ConfigError(
            f"{path} holds a run with other settings: {'; '.join(changed[:4])}",
            remedy="Resume it with the settings it was started with, or give the new run another run.name.",
        )


def _write_manifest(directory: RunDirectory, config: RunConfig) -> None:
    """Keep the settings that may change at a resume where the run's processes read them."""
    manifest = msgspec.structs.replace(directory.manifest, config=config.model_dump(mode="json"))
    partial = directory.layout.manifest.with_name(".partial-manifest.json")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    partial.rename(directory.layout.manifest)
