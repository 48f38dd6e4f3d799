"""Adam, schedule and count against numbers computed elsewhere, uninterrupted and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule

C59 = json.loads((Path(__file__).parent / "expected.json").read_text())["C59"]
SETTINGS = OptimizerSettings(learning_rate=1e-3, schedule="cosine", warmup_steps=10, decay_until_step=100)


def train(
    weight: jax.Array, state: optax.OptState, gradients: list[float]
) -> tuple[jax.Array, optax.OptState]:
    optimizer = make_optimizer(SETTINGS)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient, weight.dtype), state, weight)
        weight = optax.apply_updates(weight, updates)
    return weight, state


def moment(state: optax.OptState, name: str) -> float:
    (value,) = [value for _, value in optax.tree.get_all_with_path(state, name)]
    return float(value)


def test_c59_adam_schedule_and_count_are_exact() -> None:
    expected, gradients = C59["expect"], C59["input"]["grads"]
    with jax.enable_x64(True):
        start = jnp.asarray(C59["input"]["w0"])
        middle, state = train(start, make_optimizer(SETTINGS).init(start), gradients[:3])
        np.testing.assert_allclose(middle, expected["w_after_3"], atol=1e-12)
        end, state = train(middle, state, gradients[3:])
        np.testing.assert_allclose(end, expected["w_after_6"], atol=1e-12)
        np.testing.assert_allclose(moment(state, "mu"), expected["m"], rtol=1e-8)
        np.testing.assert_allclose(moment(state, "nu"), expected["v"], rtol=1e-8)
        assert {int(count) for _, count in optax.tree.get_all_with_path(state, "count")} == {
            expected["count"]
        }
        for step, rate in expected["lr_at"].items():
            np.testing.assert_allclose(make_schedule(SETTINGS)(int(step)), rate, rtol=1e-5)


def test_c59_resumed_equals_uninterrupted() -> None:
    gradients = C59["input"]["grads"]
    start = jnp.float32(C59["input"]["w0"])
    fresh = make_optimizer(SETTINGS).init(start)
    whole, _ = train(start, fresh, gradients)
    middle, state = train(start, fresh, gradients[:3])
    saved = [np.array(leaf) for leaf in jax.tree.leaves((middle, state))]
    restored = jax.tree.unflatten(jax.tree.structure((middle, state)), [jnp.asarray(leaf) for leaf in saved])
    resumed, _ = train(*restored, gradients[3:])
    assert resumed.tobytes() == whole.tobytes()
