"""`forebay export`: a run's weights as a Hugging Face model directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath
from forebay.cli.runs import ExportDtype, join_run, write_model_config
from forebay.errors import ConfigError
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Published version; the newest by default.")] = None,
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = "float32",
) -> None:
    """Write a published version, its configuration and tokenizer: for transformers, vLLM or `model.path`."""
    require_learner_packages()
    from forebay.models.checkpoint_io import cast, write_tensors

    if to.exists():
        raise ConfigError(f"{to} exists already", remedy="Choose another directory.")
    joined = join_run(run)
    reader = WeightReader(joined.layout.weights)
    found, tensors = reader.load(_published(reader, version))
    partial = to.with_name(f".partial-{to.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(joined.model_directory, partial)
        write_model_config(partial, joined.model, dtype)
        write_tensors(partial, cast(tensors, dtype), max_shard_bytes=5 * 10**9)
        partial.rename(to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    typer.echo(f"version {found.version} (incarnation {found.incarnation}) written to {to}")


def _published(reader: WeightReader, version: int | None) -> PolicyVersion | None:
    if version is None:
        return None
    matches = [known for known in reader.versions() if known.version == version]
    if not matches:
        raise ConfigError(
            f"version {version} is not published",
            limit=[known.version for known in reader.versions()],
            remedy="Name one of these, or raise weights.keep_versions in the next run.",
        )
    return matches[-1]
