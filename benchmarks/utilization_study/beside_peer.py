"""Beside a peer: its own benchmark script, and this product, at the same shape, latencies and step time."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.prediction_study.calibration import steady_lines
from benchmarks.prediction_study.machinery import configure, run_product
from benchmarks.prediction_study.profiling import Profiles
from benchmarks.prediction_study.settings import Setting, Waits
from forebay.planner.plan import Plan, Wanted, make_scenario, plan
from forebay.telemetry.summary import RunSummary

# The peer's shape: tasks a step, trajectories of each, and at most so many turns, each number as likely.
_TASKS: Final = 4
_GROUP: Final = 4
_TURNS: Final = 4
# A turn of the waiting device: ten tokens on average, four per 40 ms.
_TURN_S: Final = 0.1
_OFF_POLICY_STEPS: Final = (0, 2)
_PEER_STEPS: Final = 16
_PEER_TIMEOUT_S: Final = 420.0
_WARMUP_BATCHES: Final = 2
_SECONDS: Final = 60.0
_CALIBRATION_S: Final = 20.0
_WANTED: Final = Wanted(busy=0.98)


class BesidePeer(msgspec.Struct, frozen=True, kw_only=True):
    """This product and a peer on the same work.

    Args:
        env_s: Time of every environment step.
        stragglers: Share of the steps that take 8 times as long.
        turn_s: Mean time of a model's turn.
        step_s: The learner's step, as measured here; the peer is told to take as long.
        plan: Our fleet.
        steps_per_s: Ours, decoupled.
        busy: Ours, decoupled.
        sync_steps_per_s: Ours, synchronous.
        sync_busy: Ours, synchronous.
        peer: What the peer's script printed, a line for each number of off-policy steps.
        ratio: Our steps per second over the peer's best; None if it printed none.
    """

    env_s: float
    stragglers: float
    turn_s: float
    step_s: float
    plan: Plan
    steps_per_s: float
    busy: float
    sync_steps_per_s: float
    sync_busy: float
    peer: list[dict[str, Any]]
    ratio: float | None


def run_beside(script: str, env_s: float, stragglers: float, directory: Path) -> BesidePeer:
    """Run our two and the peer's, one after the other.

    Args:
        script: The peer's benchmark script.
        env_s: Time of an environment step.
        stragglers: Share of them that take 8 times as long.
        directory: Where our runs lie.

    Raises:
        PeerFailedError: A run of ours did not end well.
    """
    shape = _shape(env_s, stragglers)
    profiles = Profiles(directory / "profiles", _CALIBRATION_S, _quietly)
    profiles.measure([shape])
    found = plan(profiles.of(shape)[0], make_scenario({**shape.scenario, "steps": 100}), _WANTED)
    warmup = 2 * found.credit + 2
    planned = msgspec.structs.replace(
        shape,
        name="decoupled",
        max_staleness=found.max_staleness,
        credit=found.credit,
        places=found.episodes_in_flight,
    )
    decoupled = _run(planned, _SECONDS + warmup / found.steps_per_s, warmup, directory)
    sync = msgspec.structs.replace(shape, name="sync", max_staleness=0)
    synchronous = _run(sync, _SECONDS, _WARMUP_BATCHES, directory)
    lines = steady_lines(directory / "decoupled", warmup)
    step_s = math.fsum(line["time.computing_s"] for line in lines) / len(lines)
    peer = [run_peer(script, env_s, stragglers, off_policy=n, step_s=step_s) for n in _OFF_POLICY_STEPS]
    best = max((float(one["steps_per_s"]) for one in peer if one.get("steps_per_s")), default=None)
    ours = decoupled.steps_per_s or 0.0
    return BesidePeer(
        env_s=env_s,
        stragglers=stragglers,
        turn_s=_TURN_S,
        step_s=step_s,
        plan=found,
        steps_per_s=ours,
        busy=decoupled.busy or 0.0,
        sync_steps_per_s=synchronous.steps_per_s or 0.0,
        sync_busy=synchronous.busy or 0.0,
        peer=peer,
        ratio=ours / best if best else None,
    )


def run_peer(
    script: str, env_s: float, stragglers: float, *, off_policy: int, step_s: float
) -> dict[str, Any]:
    """Return what the peer's own script prints: random tokens after a wait, and training that sleeps.

    Args:
        script: The script.
        env_s: Time of an environment step.
        stragglers: Share of them that take 8 times as long.
        off_policy: How many steps its data may be old.
        step_s: Time of a training step; its own small model's comes on top.
    """
    options = {
        "--engine": "sim",
        "--off-policy": off_policy,
        "--batch": _TASKS,
        "--group": _GROUP,
        "--max-turns": _TURNS,
        "--latency": env_s,
        "--straggler-p": stragglers,
        "--gen-s": _TURN_S,
        "--train-s": step_s / _TASKS,
        "--steps": _PEER_STEPS,
        "--timeout": _PEER_TIMEOUT_S,
    }
    words = [str(word) for option in options.items() for word in option]
    return ask_peer([script, "--no-diag", *words], 2.0 * _PEER_TIMEOUT_S)


def ask_peer(words: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Run a peer's script and return the last object that it printed; `error` says why there is none.

    Args:
        words: The script and its options.
        limit_s: Longest time; what was measured of ours before is not to be lost with it.
    """
    try:
        done = subprocess.run(["bash", *words], capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {limit_s:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-500:]}
    return found


def _shape(env_s: float, stragglers: float) -> Setting:
    waits = Waits(
        mean_s=env_s, sigma=0.0, stragglers=stragglers, least_turns=1, most_turns=_TURNS, waits_at_end=True
    )
    return Setting(name="shape", about="", waits=waits, groups=_TASKS, group_size=_GROUP)


def _run(setting: Setting, seconds_s: float, warmup_batches: int, directory: Path) -> RunSummary:
    config = configure(setting, seconds_s, warmup_batches)
    return run_product(config, directory / setting.name)


def _quietly(line: str) -> None:
    """Say nothing of what is measured."""
