"""`forebay export`: a run's weights as a Hugging Face model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath, configure_jax
from forebay.cli.runs import ExportDtype, Run, join_run
from forebay.errors import ConfigError
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Published version; the newest by default.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best evaluated checkpoint instead.")] = False,
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = "float32",
) -> None:
    """Write a published version, its configuration and tokenizer: for transformers, vLLM or `model.path`.

    Examples:
        forebay export runs/calculator --to my-model
        forebay export runs/calculator --to my-model --best --dtype bfloat16
    """
    require_learner_packages()
    from forebay.models.checkpoint_io import save_model
    from forebay.models.source import source_tokenizer_files

    if to.exists():
        raise ConfigError(f"{to} exists already", remedy="Choose another directory.")
    if best and version is not None:
        raise ConfigError("--best and --version name two versions", remedy="Give one of them.")
    joined = join_run(run)
    found, tensors = _best(joined) if best else _published(WeightReader(joined.layout.weights), version)
    files = source_tokenizer_files(joined.model_directory)
    save_model(to, joined.model, tensors, files=files, dtype=dtype)
    typer.echo(f"version {found.version} (incarnation {found.incarnation}) written to {to}")


def _best(run: Run) -> tuple[PolicyVersion, Tensors]:
    configure_jax()
    from forebay.cli.learner_parts import best_weights

    return best_weights(run)


def _published(reader: WeightReader, version: int | None) -> tuple[PolicyVersion, Tensors]:
    matches = [known for known in reader.versions() if known.version == version]
    if version is not None and not matches:
        raise ConfigError(
            f"version {version} is not published",
            limit=[known.version for known in reader.versions()],
            remedy="Name one of these, or raise weights.keep_versions in the next run.",
        )
    return reader.load(matches[-1] if matches else None)
