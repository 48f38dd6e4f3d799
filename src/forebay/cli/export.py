"""`forebay export`: a run's weights as a Hugging Face model directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.roles import RunPath
from forebay.cli.runs import join_run
from forebay.errors import ConfigError
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Published version; the newest by default.")] = None,
) -> None:
    """Write a published version with its configuration and tokenizer, for transformers, vLLM or `model.path`."""
    from forebay.models.checkpoint_io import write_tensors

    if to.exists():
        raise ConfigError(f"{to} exists already", remedy="Choose another directory.")
    joined = join_run(run)
    reader = WeightReader(joined.layout.weights)
    found, tensors = reader.load(_published(reader, version))
    partial = to.with_name(f".partial-{to.name}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(joined.model_directory, partial)
    write_tensors(partial, tensors, max_shard_bytes=5 * 10**9)
    partial.rename(to)
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
