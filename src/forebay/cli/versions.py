"""Versions of a run: published ones, the best checkpoint, and a run made of one while somebody asks it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import configure_jax
from forebay.cli.runs import Run, own_run
from forebay.config import RunConfig
from forebay.errors import ConfigError
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors


class Weights(NamedTuple):
    """The tensors of one version, as Hugging Face names them."""

    version: PolicyVersion
    tensors: Tensors


def checkpoint(run: Run, step: int | None = None) -> Weights:
    """Return the weights of a checkpoint; JAX is imported.

    Args:
        run: The run.
        step: Which; None for the one with the best evaluation.

    Raises:
        CheckpointError: There is no such checkpoint, none was evaluated, or it is damaged.
    """
    require_learner_packages()
    configure_jax()
    from forebay.cli.learner_weights import saved_weights

    return Weights(*saved_weights(run, step))


def published(run: Run, version: int | None) -> Weights:
    """Return the weights of a published version; None for the newest.

    Raises:
        ConfigError: It is not published, or not any longer.
        WeightsError: Nothing is published, or it is damaged.
    """
    reader = WeightReader(run.layout.weights)
    matches = [known for known in reader.versions() if known.version == version]
    if version is not None and not matches:
        raise ConfigError(
            f"version {version} is not published",
            limit=[known.version for known in reader.versions()],
            remedy="Name one of these, or raise weights.keep_versions in the next run.",
        )
    return Weights(*reader.load(matches[-1] if matches else None))


@contextmanager
def serving(config: RunConfig, model: Path, weights: Callable[[Run], Weights]) -> Iterator[Run]:
    """Make a run that has a single version, for as long as somebody asks it; then it is deleted.

    Args:
        config: Environments, sampling and limits.
        model: Where `config.json` and the tokenizer lie.
        weights: Given the new run, returns what it publishes.
    """
    require_learner_packages()
    from forebay.weights.publisher import WeightPublisher

    settings = config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": str(model.absolute()), "tokenizer": "small"}),
            "generator": config.generator.model_copy(update={"port": 0, "vllm": ()}),
            "store": config.store.model_copy(update={"path": None}),
        }
    )
    with tempfile.TemporaryDirectory(prefix="forebay-") as parent:
        directory, run = own_run(settings, Path(parent) / "run")
        with directory:
            WeightPublisher(run.layout.weights, run_id=run.run_id).publish(*weights(run))
            yield run
