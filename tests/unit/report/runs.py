"""Run directories made by the product's own writers, with figures that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay.chat import Message, small_chat, write_small_chat
from forebay.clock import ManualClock
from forebay.learner.run_directory import open_run
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.summary import RunSummary, write_summary
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    StepRecord,
    Trajectory,
    VersionSpan,
)
from forebay.trajectory import Sequence as TokenSequence
from forebay.wire import encode

BEGIN_S = 1_700_000_000.0
CONFIG: dict[str, Any] = {
    "staleness": {"max_staleness": 4, "on_stale": "wait", "credit": None},
    "batching": {"groups": 4, "group_size": 4, "minibatches": 1, "epochs": 1, "max_length": 256, "rows": 2},
    "actors": {"processes": 1, "episodes_per_process": 32},
    "generator": {"slots": 8},
    "learner": {"checkpoint_every": 10, "warmup_steps": 0},
    "environment": {"calc": {"max_turns": 4, "episode_timeout_s": 15.0}},
}
SUMMARY: dict[str, Any] = {
    "busy": 0.75, "goodput": 0.6, "starved": 0.25, "steps": 3, "steps_per_s": 0.25,
    "fresh_tokens_per_s": 50.0, "max_staleness": 4, "group_size": 4, "step_s": 3.0, "env_s": 1.0,
    "reward_first": 0.25, "reward_last": 0.5,
    "staleness_max": 4, "staleness_mean": 2.0, "discarded": 0, "masked_tokens": 0, "compiles_after_warmup": 0,
    "accepted": 48, "trained": 48, "lost": 0, "repeated": 0,
}  # fmt: skip


def times(computing: float, starved: float, **others: float) -> dict[str, float]:
    """Return the states of an interval."""
    states = ("publishing", "compiling", "checkpointing", "packing", "other")
    seconds = {"computing": computing, "starved": starved, **{s: others.get(s, 0.0) for s in states}}
    return {f"time.{state}_s": value for state, value in seconds.items()}


def line(computing: float = 3.0, starved: float = 1.0, **values: Any) -> dict[str, Any]:
    """Return one batch as older versions recorded it; it took `computing + starved` seconds."""
    wall_s = computing + starved
    return {
        "incarnation": 0, "busy": computing / wall_s, "goodput": 0.6, "starved": starved / wall_s,
        "buffer": 2, "staleness": 2.0, "staleness_max": 4, "reward": 0.5, "tokens_per_s": 50.0, "compiles": 0,
        "step_s": 3.0, **times(computing, starved), "trajectories": 16, "fresh_tokens": 200,
        "masked_tokens": 0, "fill": 0.9, "zero_spread_groups": 1, "fresh_tokens.staleness.2": 200,
        "action_tokens.turn.0": 200,
        "fresh_tokens.turn.0": 200, "ess": 0.9, "clip_fraction": 0.01,
        "entropy": 1.0, "k3": 0.01, "grad_norm": 0.5,
        "loss": 0.1, "nonfinite_updates": 0, "store.outstanding": 20, "store.live_bytes": 1000,
        "store.open_groups": 2, **values,
    }  # fmt: skip


def new_values(environment: str = "calc") -> dict[str, Any]:
    """Return what newer versions of the program record besides."""
    life = {"reset": 0.1, "generator_queue": 0.2, "generating": 0.7, "environment": 4.0, "other": 0.0}
    latencies = {"step_s": (1.0, 2.0, 3.0, 4.0), "episode_s": (2.0, 6.0, 8.0, 9.0)}
    return {
        **{f"life.{place}_s": value for place, value in (life | {"buffer": 2.0, "training": 3.0}).items()},
        **{
            f"latency.{environment}.{what}.{which}": value
            for what, values in latencies.items()
            for which, value in zip(("p50", "p95", "p99", "max"), values, strict=True)
        },
        f"trajectories.{environment}": 16, "finish.terminated": 15, "finish.timeout": 1,
        "masked.unscored": 10,
        **{f"lengths.{stage}.{which}": value for stage in ("trained", "accepted")
           for which, value in (("p50", 10), ("p95", 20), ("p99", 25), ("mean", 12.0))},
        "wait.episodes_s": 1.0,
    }  # fmt: skip


def make_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]] = (),
    *,
    steps: Sequence[int] = (),
    config: Mapping[str, Any] = CONFIG,
    summary: bool = False,
    evaluations: Sequence[Mapping[str, Any]] = (),
    actors: Sequence[Mapping[str, Any]] = (),
    trajectories: Mapping[int, Sequence[Trajectory]] | None = None,
) -> Path:
    """Make a run directory in which each batch ended as long after the one before as its times add up to."""
    clock = ManualClock(BEGIN_S)
    with open_run(path, config=config, seeds={"run": 1}, clock=clock, run_id=f"{path.name}-1"):
        write_small_chat(path / "model")
    with MetricsWriter(path / "metrics.jsonl", clock) as writer:
        for step, values in zip(steps or range(1, len(lines) + 1), lines, strict=True):
            clock.advance(sum(v for name, v in values.items() if name.startswith("time.")))
            writer.write(step, values)
    _write(path / "eval.jsonl", evaluations)
    _write(path / "logs" / "actor-0.jsonl", actors)
    for version, sampled in (trajectories or {}).items():
        (path / "samples").mkdir(exist_ok=True)
        for trajectory in sampled:
            name = f"{version:08d}-{trajectory.trajectory_id}.frame"
            (path / "samples" / name).write_bytes(encode(trajectory))
    if summary:
        write_summary(path / "summary.json", RunSummary(**SUMMARY))
    # Its process is that of the test, which goes on.
    (path / "run.lock").unlink()
    return path


def make_trajectory(
    name: str = "t1",
    *,
    told: str = "7*6?",
    said: str = "42",
    reward: float | None = 1.0,
    versions: Sequence[int] = (1, 2),
) -> Trajectory:
    """Return an episode of one turn with the small tokenizer, sampled half by each version."""
    chat = small_chat()
    prompt = chat.encode(chat.render([Message("user", told)]))
    sampled = np.append(chat.encode(said), chat.stop_tokens[:1]).astype(np.int32)
    count = len(sampled)
    spans = [count // 2, count - count // 2] if len(versions) == 2 else [count]
    return Trajectory(
        trajectory_id=name, run_id="r", incarnation=0, group_id="g", group_size=4, member=0, attempt=0,
        task_id="task-1", environment="calc", reward=reward, terminated=True, truncated=False,
        finish="terminated", started_s=BEGIN_S, finished_s=BEGIN_S + 3.0,
        steps=(StepRecord(reward, "stop", 0.5, 0.25, 1.5),),
        sequences=(
            TokenSequence(
                tokens=np.concatenate([prompt, sampled]),
                action_spans=(ActionSpan(len(prompt), len(prompt) + count, 0),),
                behavior_logprobs=np.linspace(-0.01, -3.0, count).astype(np.float32),
                version_spans=tuple(
                    VersionSpan(n, PolicyVersion(0, v), PolicyVersion(0, v))
                    for n, v in zip(spans, versions, strict=True)
                ),
                sampling=Sampling(),
            ),
        ),
    )  # fmt: skip


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    if lines:
        clock = ManualClock(BEGIN_S)
        with MetricsWriter(path, clock) as writer:
            for values in lines:
                clock.advance(5.0)
                rest = {name: value for name, value in values.items() if name != "step"}
                writer.write(values.get("step", 0), rest)
