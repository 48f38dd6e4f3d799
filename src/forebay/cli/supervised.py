"""`forebay sft`: a supervised warm start with the same learner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.configuration import ConfigPath, Overrides
from forebay.cli.preflight import require_learner_packages
from forebay.cli.roles import configure_jax
from forebay.config import load_config
from forebay.telemetry.logs import setup_logging


def sft(
    config: ConfigPath,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option(help="Model directory to make.")] = Path("warm-start"),
) -> None:
    """Imitate demonstrations and write a model directory that `model.path` can name.

    Example:
        forebay sft examples/warm_start.toml --to warm-start
    """
    settings = load_config(config, overrides or [])
    require_learner_packages()
    setup_logging("sft")
    configure_jax()
    from forebay.cli.imitating import imitate

    imitate(settings, to)
