"""Which sinks a run wants, and whether their packages are there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forebay.errors import ConfigError
from forebay.telemetry.settings import TelemetrySettings
from forebay.telemetry.sinks.prometheus import PrometheusSink
from forebay.telemetry.sinks.protocol import SinkOpener
from forebay.telemetry.sinks.tensorboard import TensorBoardSink
from forebay.telemetry.sinks.threads import SinkThread
from forebay.telemetry.sinks.wandb import WandbSink

_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "prometheus": "prometheus_client"}


class SinkContext(NamedTuple):
    """What sinks need to know of the run.

    Args:
        directory: The run directory.
        run_id: Unique name of the run.
        config: The whole configuration; JSON types only.
    """

    directory: Path
    run_id: str
    config: Mapping[str, Any]


def check_sinks(settings: TelemetrySettings) -> None:
    """Check that the packages of the wanted sinks are installed; none is imported.

    Raises:
        ConfigError: One is missing; the message names the extra that has it.
    """
    for extra in _wanted(settings):
        if importlib.util.find_spec(_MODULES[extra]) is None:
            raise ConfigError(
                f"telemetry.{_key(extra)} needs a package that is not installed: {_MODULES[extra]}",
                remedy=f"Install the extra: pip install 'forebay[{extra}]'.",
            )


def make_sinks(
    settings: TelemetrySettings, context: SinkContext, on_start: Callable[[], None] = lambda: None
) -> tuple[SinkThread, ...]:
    """Return the wanted sinks; each is opened by its own thread, at its first record.

    Args:
        settings: Which are wanted.
        context: What they need to know.
        on_start: Runs first in each thread.

    Raises:
        ConfigError: A package is missing.
    """
    check_sinks(settings)
    openers = _openers(settings, context)
    return tuple(SinkThread(name, openers[name], on_start=on_start) for name in _wanted(settings))


def _wanted(settings: TelemetrySettings) -> Iterator[str]:
    if settings.tensorboard:
        yield "tensorboard"
    if settings.wandb != "off":
        yield "wandb"
    if settings.prometheus_port is not None:
        yield "prometheus"


def _key(extra: str) -> str:
    return "prometheus_port" if extra == "prometheus" else extra


def _openers(settings: TelemetrySettings, context: SinkContext) -> dict[str, SinkOpener]:
    mode, port = settings.wandb, settings.prometheus_port
    return {
        "tensorboard": lambda step: TensorBoardSink(context.directory / "tensorboard", step),
        "wandb": lambda _: WandbSink(
            context.directory / "wandb",
            mode="online" if mode == "online" else "offline",
            project=settings.wandb_project,
            run_id=context.run_id,
            config=context.config,
        ),
        "prometheus": lambda _: PrometheusSink(port or 0, context.run_id),
    }
