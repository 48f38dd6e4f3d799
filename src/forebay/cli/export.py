"""`forebay export`: a run's weights as a Hugging Face model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath
from forebay.cli.runs import ExportDtype, join_run
from forebay.cli.versions import checkpoint, published
from forebay.errors import ConfigError


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Published version; the newest by default.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best evaluated checkpoint instead.")] = False,
    step: Annotated[int | None, typer.Option(help="The checkpoint of this step instead.")] = None,
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = "float32",
) -> None:
    """Write a published version, its configuration and tokenizer: for transformers, vLLM or `model.path`.

    Checkpoints of any mesh and any number of processes can be exported, on a machine of any kind.

    Examples:
        forebay export runs/calculator --to my-model
        forebay export runs/calculator --to my-model --best --dtype bfloat16
        forebay export runs/calculator --to my-model --step 40
    """
    require_learner_packages()
    from forebay.models.checkpoint_io import save_model
    from forebay.models.source import source_tokenizer_files

    if to.exists():
        raise ConfigError(f"{to} exists already", remedy="Choose another directory.")
    if best + (version is not None) + (step is not None) > 1:
        raise ConfigError("--best, --step and --version name two versions", remedy="Give one of them.")
    joined = join_run(run)
    if best or step is not None:
        found, tensors = checkpoint(joined, step)
    else:
        found, tensors = published(joined, version)
    files = source_tokenizer_files(joined.model_directory)
    save_model(to, joined.model, tensors, files=files, dtype=dtype)
    typer.echo(f"version {found.version} (incarnation {found.incarnation}) written to {to}")
