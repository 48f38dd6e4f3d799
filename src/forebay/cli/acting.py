"""The body of `forebay act`: a pool of episodes between a run's store and its generators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forebay.actors.pool import ActorPool
from forebay.actors.run import run_actor
from forebay.actors.stats import EpisodeStats
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind, load_environment
from forebay.generation.pool import connect
from forebay.generation.settings import ClientSettings
from forebay.telemetry.histogram import Histogram
from forebay.telemetry.metrics import MetricsWriter

_PERCENTILES = (0.5, 0.95, 0.99)


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
        writer.write(0, {**pool.stats(), **episode_values(pool.episodes.drain())})

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


def episode_values(episodes: Sequence[EpisodeStats]) -> dict[str, float]:
    """Return what the episodes that ended in an interval were like: counts, lengths, where their time went.

    Beside the lengths of trained episodes in `metrics.jsonl`, these show whether long tasks are starved.
    """
    values: dict[str, float] = dict(Counter(f"finish.{e.finish}" for e in episodes))
    measured = {
        "turns": [float(e.num_turns) for e in episodes],
        "action_tokens": [float(e.num_action_tokens) for e in episodes],
        "episode_s": [e.duration_s for e in episodes],
        "admission_s": [e.admission_s for e in episodes],
        "generator_wait_s": [e.generator_wait_s for e in episodes],
        "generate_s": [e.generate_s for e in episodes],
    }
    for name in sorted({e.environment for e in episodes}):
        mine = [e for e in episodes if e.environment == name]
        measured[f"environment_s.{name}"] = [s for e in mine for s in e.environment_s]
    for name, numbers in measured.items():
        if numbers:
            histogram = Histogram()
            for number in numbers:
                histogram.add(number)
            values |= {f"{name}.p{100 * q:g}": histogram.percentile(q) for q in _PERCENTILES}
    return values


def load_environments(run: Run) -> dict[str, EnvironmentKind]:
    """Prepare every environment of a run, by name."""
    clock = SystemClock()
    return {name: load_environment(settings, clock) for name, settings in run.config.environment.items()}
