"""What the objective costs: each loss, with its gradient, beside a whole train step of the demo's size.

    .venv/bin/python benchmarks/objectives.py --json [--quick]

`step_s` is the gradient program of one full micro-batch and its share of the optimizer's update; `loss_s` is
the objective alone on the same shape, as a program of its own, so with the call's overhead on top. All are
measured in turns in one process, the best of each, so that load hits them alike. `of_step` is what the target
of 2 % is about. `advantages_s` is what the host computes for a whole batch; `of_batch` is its share of the
batch's steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from forebay.batching.packing import Bucket
from forebay.batching.rows import TrainRows
from forebay.cli.runs import builtin_or_path
from forebay.config import RunConfig, load_config
from forebay.learner.bare import full_rows
from forebay.learner.programs import TrainPrograms
from forebay.models.checkpoint_io import load_model
from forebay.models.sharding import make_mesh
from forebay.objectives import LossInputs, ObjectiveSettings, Outcome, build_batch_advantages
from forebay.objectives.build import build_objective
from forebay.objectives.presets import PRESETS

_EXAMPLE = Path(__file__).parent.parent / "examples" / "calculator.toml"
_SEGMENT_TOKENS = 128
_OWN = {
    "default": ObjectiveSettings(),
    "turn, interpolated, sequence_mis": ObjectiveSettings(
        loss="decoupled_ppo",
        proximal="interpolated",
        ratio="turn",
        correction="sequence_mis",
        dual_clip=3.0,
    ),
    "grpo, held to a reference": ObjectiveSettings(preset="grpo", kl_coef=0.04),
    "reinforce++, held to a reference": ObjectiveSettings(preset="reinforce++", kl_coef=0.01),
}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    arguments = parser.parse_args()
    config = load_config(_EXAMPLE)
    result = measure(config, repeats=5 if arguments.quick else 40)
    print(json.dumps(result, indent=None if arguments.json else 2))


def measure(config: RunConfig, repeats: int) -> dict[str, Any]:
    """Return the cost of every preset's objective, and of the default's."""
    bucket = Bucket(config.batching.rows, config.batching.packed_length)
    rows = _noisy(full_rows(bucket, _SEGMENT_TOKENS))
    step, apply = _step_calls(config, bucket, rows)
    objectives = {name: _objective_call(settings, rows) for name, settings in _settings().items()}
    log(f"compiled {len(objectives)} objectives and the step for {bucket}")
    best_s = _best_in_turns({"step": step, "apply": apply, **objectives}, repeats)
    advantages_s = _best_in_turns({"advantages": lambda: _advantages(config)}, repeats)["advantages"]
    batch_tokens = config.batching.groups * config.batching.group_size * _SEGMENT_TOKENS
    micro_batches = math.ceil(batch_tokens / math.prod(bucket))
    step_s = best_s["step"] + best_s["apply"] / micro_batches
    return {
        "rows": bucket.rows,
        "row_length": bucket.length,
        "step_s": step_s,
        "gradient_s": best_s["step"],
        "apply_s": best_s["apply"],
        "objectives": {
            name: {"loss_s": best_s[name], "of_step": best_s[name] / step_s} for name in objectives
        },
        "worst_of_step": max(best_s[name] for name in objectives) / step_s,
        "advantages_s": advantages_s,
        "of_batch": advantages_s / (step_s * micro_batches),
    }


def log(message: str) -> None:
    """Say what goes on, away from stdout."""
    print(message, file=sys.stderr, flush=True)


def _settings() -> dict[str, ObjectiveSettings]:
    longest = {"dr_grpo": {"constant_tokens": 256}}
    return _OWN | {
        name: ObjectiveSettings.model_validate({"preset": name, **longest.get(name, {})}) for name in PRESETS
    }


def _noisy(rows: TrainRows) -> TrainRows:
    rng = np.random.default_rng(0)
    shape = rows.tokens.shape
    behavior = rng.normal(-1.5, 0.5, shape).astype(np.float32)
    return rows._replace(
        advantages=rng.normal(size=shape).astype(np.float32),
        behavior_logprobs=behavior,
        proximal_logprobs=behavior + rng.normal(0, 0.1, shape).astype(np.float32),
        staleness=rng.integers(0, 8, shape, dtype=np.int32),
    )


def _step_calls(
    config: RunConfig, bucket: Bucket, rows: TrainRows
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a call of the gradient program and one of the optimizer's; both keep their donated state."""
    assert config.model.path is not None
    model, params = load_model(builtin_or_path(config.model.path))
    programs = TrainPrograms(
        model,
        make_mesh(config.mesh),
        config.optimizer,
        build_objective(config.objective),
        config.compute,
    )
    programs.warm_up([bucket])
    state, accumulator = programs.init_state(params), programs.zeros()
    placed, denominator = programs.place(rows), float(rows.loss_mask.sum())

    def step() -> Any:
        nonlocal accumulator
        accumulator = programs.accumulate(state.params, accumulator, placed, denominator)
        return accumulator

    def apply() -> Any:
        nonlocal state, accumulator
        state, accumulator, stats = programs.apply(state, accumulator)
        return stats

    return step, apply


def _objective_call(settings: ObjectiveSettings, rows: TrainRows) -> Callable[[], Any]:
    program = jax.jit(jax.value_and_grad(build_objective(settings), has_aux=True))
    rng = np.random.default_rng(1)
    logprobs = jnp.asarray(rows.behavior_logprobs + rng.normal(0, 0.1, rows.tokens.shape), jnp.float32)
    entropy = jnp.ones_like(logprobs)
    inputs = LossInputs(
        *map(
            jnp.asarray,
            (
                rows.loss_mask,
                rows.advantages,
                rows.behavior_logprobs,
                rows.proximal_logprobs,
                rows.segment_ids,
                rows.staleness,
                rows.behavior_logprobs,
                np.full_like(rows.behavior_logprobs, 1.5),
            ),
        )
    )
    denominator = jnp.float32(rows.loss_mask.sum())
    return lambda: program(logprobs, entropy, inputs, denominator)


def _advantages(config: RunConfig) -> Any:
    settings = ObjectiveSettings(
        advantage="group_mean_std", normalize_advantages=True, overlong_tokens=100, overlong_cache_tokens=50
    )
    group = [Outcome(float(member % 2), 40 + member) for member in range(config.batching.group_size)]
    return build_batch_advantages(settings)([group] * config.batching.groups)


def _best_in_turns(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    best_s = dict.fromkeys(calls, math.inf)
    for _ in range(repeats + 1):  # the first round compiles
        for name, call in calls.items():
            began_s = time.perf_counter()
            jax.block_until_ready(call())
            best_s[name] = min(best_s[name], time.perf_counter() - began_s)
    return best_s


if __name__ == "__main__":
    main()
