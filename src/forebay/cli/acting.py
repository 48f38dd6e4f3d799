"""The body of `forebay act`: a pool of episodes between a run's store and its generators."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.actors.pool import ActorPool
from forebay.actors.run import run_actor
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind, load_environment
from forebay.generation.pool import connect
from forebay.generation.settings import ClientSettings
from forebay.telemetry.metrics import MetricsWriter


async def run_actor_process(run: Run, addresses: Sequence[str], name: str) -> None:
    """Work until SIGTERM, then let the running episodes end.

    Raises:
        PeerFailedError: Store or generator failed for too long.
    """
    clock = SystemClock()
    generator = connect(addresses, client_settings(run))
    store = run.open_store()
    writer = MetricsWriter(run.layout.logs / f"{name}.jsonl", clock)

    def report(pool: ActorPool) -> None:
        pool.episodes.drain()
        writer.write(0, pool.stats())

    try:
        await run_actor(
            store=store,
            generator=generator,
            chat=run.chat,
            environments=load_environments(run),
            settings=run.config.actors,
            run_seed=run.config.run.seed,
            name=name,
            clock=clock,
            max_kv_staleness=run.config.staleness.max_staleness,
            report=report,
        )
    finally:
        await generator.close()
        store.close()
        writer.close()


def client_settings(run: Run) -> ClientSettings:
    """Return how a run's generators are called: with the token that they ask for."""
    return ClientSettings(token_env=run.config.generator.token_env)


def load_environments(run: Run) -> dict[str, EnvironmentKind]:
    """Prepare every environment of a run, by name."""
    clock = SystemClock()
    return {name: load_environment(settings, clock) for name, settings in run.config.environment.items()}
