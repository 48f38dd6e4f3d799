"""The body of `forebay act`: a pool of episodes between a run's store and its generators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forebay.actors.control import BatchDemand
from forebay.actors.pool import ActorPool
from forebay.actors.run import run_actor
from forebay.actors.stats import EpisodeStats
from forebay.cli.runs import Run
from forebay.cli.tracing import open_tracer
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind, load_environment
from forebay.generation.pool import connect
from forebay.generation.settings import ClientSettings
from forebay.staleness import Shares
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.percentiles import latency_values, length_values


async def run_actor_process(run: Run, addresses: Sequence[str], name: str) -> None:
    """Work until SIGTERM, then let the running episodes end.

    Raises:
        PeerFailedError: Store or generator failed for too long.
    """
    clock = SystemClock()
    generator = connect(addresses, client_settings(run))
    store = run.open_store()
    writer = MetricsWriter(run.layout.logs / f"{name}.jsonl", clock)
    tracer = open_tracer(run, name)

    def report(pool: ActorPool) -> None:
        writer.write(0, {**pool.stats(), **pool.gauges(), **episode_values(pool.episodes.drain())})
        tracer.flush()

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
            tracer=tracer,
            batches=batch_demand(run),
            board_path=run.layout.board,
            report=report,
        )
    finally:
        await generator.close()
        store.close()
        writer.close()
        tracer.close()


def batch_demand(run: Run) -> BatchDemand:
    """Return what a run's learner takes at a time."""
    config = run.config
    division, batching = config.division, config.batching
    weights = {name: environment.weight for name, environment in config.environment.items()}
    groups = division.groups(batching)
    return BatchDemand(
        Shares(tuple(weights), tuple(weights.values())),
        groups,
        batching.groups * batching.group_size // groups,
    )


def client_settings(run: Run) -> ClientSettings:
    """Return how a run's generators are called: with their token, and with what vLLM does not tell."""
    return ClientSettings(
        token_env=run.config.generator.token_env,
        run_id=run.run_id,
        vocabulary=run.model.num_real_tokens,
        padded_vocabulary=run.model.vocab_size,
        adapters=run.config.separate_adapters is not None,
    )


def episode_values(episodes: Sequence[EpisodeStats]) -> dict[str, float]:
    """Return what the episodes that ended in an interval were like: counts, lengths, where their time went.

    `lengths.started` are those of all that ended, in whatever way. Beside the lengths of accepted and trained
    ones in `metrics.jsonl`, they show whether long tasks are starved.
    """
    values: dict[str, float] = dict(Counter(f"finish.{e.finish}" for e in episodes if e.finish))
    values |= Counter(f"ended.{e.environment}.{e.ending}" for e in episodes)
    finished = [e for e in episodes if e.finish]
    measured = {
        "turns": [float(e.num_turns) for e in finished],
        "action_tokens": [float(e.num_action_tokens) for e in finished],
        "episode_s": [e.duration_s for e in finished],
        "admission_s": [e.admission_s for e in finished],
        "generator_wait_s": [e.generator_wait_s for e in finished],
        "generate_s": [e.generate_s for e in finished],
    }
    for name in sorted({e.environment for e in episodes}):
        measured[f"environment_s.{name}"] = [
            s for e in episodes if e.environment == name for s in e.environment_s
        ]
    for name, numbers in measured.items():
        values |= latency_values(name, numbers)
    return values | length_values("lengths.started", [float(e.num_action_tokens) for e in episodes])


def load_environments(run: Run) -> dict[str, EnvironmentKind]:
    """Prepare every environment of a run, by name."""
    clock = SystemClock()
    return {name: load_environment(settings, clock) for name, settings in run.config.environment.items()}
