"""`forebay export`: a run's weights as a Hugging Face model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import RunPath, configure_jax
from forebay.cli.runs import ExportDtype, Run, join_run
from forebay.cli.versions import checkpoint, published
from forebay.errors import ConfigError
from forebay.telemetry.files import require_place


def export(
    run: RunPath,
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Published version; the newest by default.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best evaluated checkpoint instead.")] = False,
    step: Annotated[int | None, typer.Option(help="The checkpoint of this step instead.")] = None,
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = "float32",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only a checkpoint's adapters, as PEFT writes them.")
    ] = False,
) -> None:
    """Write a published version, its configuration and tokenizer: for transformers, vLLM or `model.path`.

    Checkpoints of any mesh and any number of processes can be exported, on a machine of any kind. Of a run
    with model.lora, the whole model is written, adapters merged; or with --adapter these alone, float32.

    Examples:
        forebay export runs/calculator --to my-model
        forebay export runs/calculator --to my-model --best --dtype bfloat16
        forebay export runs/calculator --to my-model --step 40
        forebay export runs/with-lora --to my-adapters --adapter
    """
    require_learner_packages()
    from forebay.models.checkpoint_io import save_model
    from forebay.models.hf import without_padding
    from forebay.models.source import source_tokenizer_files

    _refuse_contradictions(best=best, step=step, version=version)
    if adapter and dtype != "float32":
        raise ConfigError(
            "adapters are written as they are trained",
            got=f"--dtype {dtype}",
            limit="float32",
            remedy="Leave out --dtype, or leave out --adapter for the whole model.",
        )
    require_place(to, is_new=True)
    joined = join_run(run)
    if adapter:
        _export_adapters(joined, to, best=best, step=step, version=version)
        return
    if best or step is not None:
        found, tensors = checkpoint(joined, step)
    else:
        found, tensors = published(joined, version)
    model = joined.model
    if joined.config.model.path is None:  # else the model's own vocabulary, which may be padded too
        tensors, model = without_padding(tensors, model)
    files = source_tokenizer_files(joined.model_directory)
    save_model(to, model, tensors, files=files, dtype=dtype)
    typer.echo(f"version {found.version} (incarnation {found.incarnation}) written to {to}")


def _refuse_contradictions(*, best: bool, step: int | None, version: int | None) -> None:
    given = [
        f"--{name} {value}" for name, value in (("step", step), ("version", version)) if value is not None
    ]
    given += ["--best"] if best else []
    if len(given) > 1:
        raise ConfigError(
            "each of --best, --step and --version names what is exported",
            got=" ".join(given),
            remedy="Give one of them.",
        )


def _export_adapters(run: Run, to: Path, *, best: bool, step: int | None, version: int | None) -> None:
    lora, path = run.config.model.adapters, run.config.model.path
    if lora is None:
        raise ConfigError(
            f"{run.layout.path} trained the whole model: there are no adapters",
            remedy="Leave out --adapter; or set model.lora.rank in the next run.",
        )
    if version is not None:
        raise ConfigError(
            "adapters are exported from checkpoints, not from published versions",
            got=f"--version {version}",
            remedy="Give --step, or --best, or none of them for the newest checkpoint.",
        )
    configure_jax()
    from forebay.cli.learner_weights import newest_step, saved_parameters
    from forebay.models.lora_files import save_adapters

    chosen = None if best else newest_step(run) if step is None else step
    found, adapters = saved_parameters(run, chosen)
    # What other programs could look up: a directory, not a name that only forebay knows.
    base = path if path is not None and Path(path).is_dir() else None
    save_adapters(to, adapters, run.model, lora, base=base)
    typer.echo(f"adapters of version {found.version} (incarnation {found.incarnation}) written to {to}")
