"""Which files a run's reference policy is read from, and whether they hold a model like the one trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from forebay.cli.runs import builtin_or_path
from forebay.config import RunConfig
from forebay.errors import ModelError
from forebay.learner.reference_settings import INITIAL
from forebay.models.checkpoint_io import check_model
from forebay.models.config import ModelConfig
from forebay.models.source import source_config

_SETTING = "reference.source"
# What two models may differ in and still be compared token by token.
_FREE = ("max_position", "bos_id", "eos_ids")


def reference_path(source: str) -> Path:
    """Return where a reference lies that is not what the run begins with.

    Raises:
        ModelError: There is nothing of that name.
    """
    return builtin_or_path(source, _SETTING)


def check_reference_files(config: RunConfig, model: ModelConfig) -> None:
    """Check the shape of the reference and the headers of its files; no weights are read.

    Args:
        config: The run.
        model: The shape of its model.

    Raises:
        ModelError: One is missing or damaged, or it is another kind of model.
    """
    source = config.reference.source
    if config.objective.kl_coef and source != INITIAL:
        path = reference_path(source)
        refuse_other_model(source, source_config(path, model.num_real_tokens), model)
        check_model(path, model)


def refuse_other_model(source: str, found: ModelConfig, model: ModelConfig) -> None:
    """Refuse a reference of another shape than the model that is trained.

    Args:
        source: Where it comes from.
        found: Its shape.
        model: The shape of the model.

    Raises:
        ModelError: They differ in more than the ids that end a turn, or the longest sequence.
    """
    fields = [field.name for field in dataclasses.fields(model) if field.name not in _FREE]
    different = [name for name in fields if getattr(found, name) != getattr(model, name)]
    if different:
        raise ModelError(
            f"{_SETTING}={source} is another kind of model than the one that is trained",
            got=", ".join(f"{name} {getattr(found, name)}" for name in different),
            limit=", ".join(f"{name} {getattr(model, name)}" for name in different),
            remedy="Name a model of the same shape: what the run began with, or an export of one like it.",
        )
