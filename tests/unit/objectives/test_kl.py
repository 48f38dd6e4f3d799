from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives import LossInputs, ObjectiveSettings
from forebay.objectives.build import build_objective
from forebay.objectives.kl import ReferencePenalty, k1, k2, k3, kl_in_reward

LOGITS = jnp.array([0.3, -0.2, 1.1, 0.0, -1.0])
REFERENCE = jax.nn.log_softmax(jnp.array([0.5, 0.5, -0.5, 0.2, 0.1]))[None]


def log_policy(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(logits)[None]


def expected_gradient(losses: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The mean over tokens drawn from the policy, of the gradient of a token's loss."""
    chances = jnp.exp(log_policy(LOGITS))[0]
    return chances @ jax.jacobian(lambda logits: losses(log_policy(logits))[0])(LOGITS)


def backward_kl(logits: jax.Array) -> jax.Array:
    mine = log_policy(logits)
    return jnp.sum(jnp.exp(mine) * (mine - REFERENCE))


def forward_kl(logits: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(REFERENCE) * (REFERENCE - log_policy(logits)))


def test_values_by_hand() -> None:
    logprobs, reference = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -1.0]])
    np.testing.assert_allclose(k1(logprobs, reference), [[0.5, -1.0]])
    np.testing.assert_allclose(k2(logprobs, reference), [[0.125, 0.5]])
    np.testing.assert_allclose(k3(logprobs, reference), [[0.106530, 0.718282]], rtol=1e-5)


@pytest.mark.parametrize("estimate", [k1, k3])
def test_k1_and_k3_are_right_on_average(estimate: Callable[..., jax.Array]) -> None:
    mine = log_policy(LOGITS)
    mean = jnp.sum(jnp.exp(mine) * estimate(mine, REFERENCE))
    np.testing.assert_allclose(mean, backward_kl(LOGITS), rtol=1e-5)


def test_in_a_loss_k2_has_the_gradient_of_the_divergence_k1_none_and_k3_the_other_directions() -> None:
    gradients = [expected_gradient(lambda mine, f=f: f(mine, REFERENCE)) for f in (k1, k2, k3)]
    np.testing.assert_allclose(gradients[0], np.zeros(5), atol=1e-6)
    np.testing.assert_allclose(gradients[1], jax.grad(backward_kl)(LOGITS), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[2], jax.grad(forward_kl)(LOGITS), rtol=1e-4, atol=1e-6)


def test_in_the_reward_k1_has_the_gradient_of_the_divergence() -> None:
    def loss(mine: jax.Array) -> jax.Array:
        return -kl_in_reward(jnp.zeros_like(mine), mine, REFERENCE, coefficient=0.5) * mine

    wanted = 0.5 * jax.grad(backward_kl)(LOGITS)
    np.testing.assert_allclose(expected_gradient(loss), wanted, rtol=1e-4, atol=1e-6)


def test_the_first_use_of_a_reference_compiles_nothing() -> None:
    objective = jax.jit(build_objective(ObjectiveSettings(), ReferencePenalty(0.1)))
    logprobs, mask = jnp.array([[-1.0, -2.0]]), jnp.ones((1, 2), bool)
    stand_in = LossInputs(
        mask,
        logprobs,
        logprobs,
        logprobs,
        jnp.ones((1, 2), jnp.int32),
        jnp.zeros((1, 2), jnp.int32),
        logprobs,
    )
    free = objective(logprobs, logprobs, stand_in, jnp.float32(1))[0]
    held = objective(
        logprobs, logprobs, stand_in._replace(reference_logprobs=logprobs - 0.5), jnp.float32(1)
    )[0]
    assert float(held - free) == pytest.approx(0.1 * 2 * (np.exp(-0.5) - 1 + 0.5), rel=1e-4)
    assert objective._cache_size() == 1


def test_a_penalty_needs_the_logprobs_of_the_reference() -> None:
    objective = build_objective(ObjectiveSettings(), ReferencePenalty(0.1, "k1"))
    some = jnp.ones((1, 2))
    inputs = LossInputs(jnp.ones((1, 2), bool), some, some, some, jnp.ones((1, 2), jnp.int32))
    with pytest.raises(RecordError, match="needs its logprobs"):
        objective(some, some, inputs, jnp.float32(1))
