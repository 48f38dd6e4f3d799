"""The body of `forebay generate` where vLLM generates: it keeps the servers at the run's newest weights."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path

import typer

from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.errors import ConfigError
from forebay.generation.client import read_token
from forebay.generation.vllm import WeightUpdate, control_vllm
from forebay.generation.vllm_server import MAX_TEMPERATURE, check_vllm
from forebay.models.config import ModelConfig
from forebay.telemetry.metrics import MetricsWriter


def control_servers(run: Run) -> None:
    """Keep the vLLM servers of a run at its newest weights until SIGTERM or SIGINT.

    Every update becomes a record of `logs/generator.jsonl`, `step` being the version.

    Raises:
        ConfigError: A server was not started with what forebay needs, or the token's variable is not set.
        PeerFailedError: A server could not be updated for too long.
    """
    typer.echo(
        f"keeping {', '.join(run.config.generator.vllm)} at the weights of {run.layout.path}", err=True
    )
    asyncio.run(_control(run, run.layout.logs / "generator.jsonl"))


def check_servers(config: RunConfig, model: ModelConfig) -> None:
    """Check that every vLLM server of a configuration runs as forebay needs it.

    Raises:
        ConfigError: One does not, or the actors want a temperature that vLLM refuses.
    """
    if config.actors.temperature > MAX_TEMPERATURE:
        raise ConfigError(
            "vLLM refuses the temperature",
            got=f"actors.temperature={config.actors.temperature:g}",
            limit=f"<= {MAX_TEMPERATURE:g}",
            remedy="Lower it, or leave generator.vllm empty.",
        )
    token = read_token(config.generator.token_env)
    asyncio.run(check_vllm(config.generator, token=token, model=model, lora=config.separate_adapters))


async def _control(run: Run, records: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    settings = run.config.generator
    with MetricsWriter(records, SystemClock()) as writer:
        await control_vllm(
            run.layout.weights,
            settings,
            max_kv_staleness=run.config.staleness.max_staleness,
            stop=stop,
            token=read_token(settings.token_env),
            run_id=run.run_id,
            model=run.model,
            lora=run.config.separate_adapters,
            report=lambda update: writer.write(update.version.version, dict(_values(update))),
        )


def _values(update: WeightUpdate) -> Iterable[tuple[str, float | str]]:
    yield "server", update.address
    yield "incarnation", update.version.incarnation
    yield "oldest_cache_version", update.oldest_cache.version
    for name in ("published_s", "serving_s", "paused_s", "load_s"):
        yield name, getattr(update, name)
