"""`forebay import`: a GGUF file as a Hugging Face model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.preflight import require_learner_packages
from forebay.cli.runs import ExportDtype
from forebay.telemetry.files import require_place


def import_model(
    file: Annotated[Path, typer.Argument(help="GGUF file.", show_default=False)],
    to: Annotated[Path, typer.Option(help="Directory to make.", show_default=False)],
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = "float32",
) -> None:
    """Write the model of a GGUF file, dequantized: for transformers, vLLM or `model.path`.

    Example:
        forebay import SmolLM2-135M-Instruct-Q8_0.gguf --to smollm2
    """
    require_learner_packages()
    from forebay.chat import Chat
    from forebay.models.checkpoint_io import save_model
    from forebay.models.gguf import gguf_config
    from forebay.models.gguf_chat import tokenizer_files
    from forebay.models.gguf_file import read_gguf
    from forebay.models.gguf_tensors import read_hf_tensors

    require_place(to, is_new=True)
    header = read_gguf(file)
    gguf_config(header)  # before its tokenizer: a model that is not supported is refused as that
    files = tokenizer_files(header)
    config = gguf_config(header, Chat.from_files(files, str(file)).vocabulary)
    save_model(to, config, read_hf_tensors(header, config), files=files, dtype=dtype)
    typer.echo(f"{config.num_parameters:,} parameters and {config.num_real_tokens:,} tokens written to {to}")
