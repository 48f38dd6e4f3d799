from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives import LossInputs, ObjectiveSettings
from forebay.objectives.build import build_objective
from forebay.objectives.kl import k1, k2, k3, kl_in_reward

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


def sequence_logprobs(logits: jax.Array) -> jax.Array:
    """Of all 9 sequences of two tokens out of three, [9, 2]: the second depends on the first."""
    first = jax.nn.log_softmax(logits[0])
    second = jax.nn.log_softmax(logits[1:], axis=-1)
    return jnp.stack([jnp.repeat(first, 3), second.reshape(-1)], axis=1)


def test_in_the_reward_k1_has_the_gradient_of_the_divergence_of_whole_sequences() -> None:
    logits, reference = (jax.random.normal(jax.random.key(seed), (4, 3)) for seed in (0, 1))
    held_to, segments, mask = (
        sequence_logprobs(reference),
        jnp.ones((9, 2), jnp.int32),
        jnp.ones((9, 2), bool),
    )
    chances = jnp.exp(sequence_logprobs(logits).sum(axis=1))

    def expected_loss(moved: jax.Array) -> jax.Array:
        mine = sequence_logprobs(moved)
        advantages = kl_in_reward(jnp.zeros((9, 2)), k1(mine, held_to), mask, segments, coefficient=0.5)
        return chances @ -(advantages * mine).sum(axis=1)

    def divergence(moved: jax.Array) -> jax.Array:
        mine = sequence_logprobs(moved).sum(axis=1)
        return jnp.exp(mine) @ (mine - held_to.sum(axis=1))

    wanted = 0.5 * jax.grad(divergence)(logits)
    np.testing.assert_allclose(jax.grad(expected_loss)(logits), wanted, rtol=1e-4, atol=1e-6)


def test_in_the_reward_a_token_answers_for_the_rest_of_its_own_sequence_and_for_trained_tokens_only() -> None:
    # Two sequences side by side, a prompt token in each, padding behind.
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 0]])
    mask = jnp.array([[0, 1, 1, 1, 0, 1, 0]], bool)
    divergences = jnp.array([[np.nan, 1.0, 2.0, 4.0, np.nan, 8.0, np.nan]])
    got = kl_in_reward(jnp.full((1, 7), 10.0), divergences, mask, segments, coefficient=0.5)
    np.testing.assert_allclose(got[0, :6], [8.5, 8.5, 9.0, 4.0, 6.0, 6.0])


def loss_of(settings: ObjectiveSettings, reference: jax.Array | None) -> float:
    logprobs, mask = jnp.array([[-1.0, -2.0]]), jnp.ones((1, 2), bool)
    inputs = LossInputs(mask, jnp.ones((1, 2)), logprobs, logprobs, jnp.ones((1, 2), jnp.int32))
    inputs = inputs._replace(reference_logprobs=reference)
    return float(build_objective(settings)(logprobs, logprobs, inputs, jnp.float32(2))[0])


def test_without_a_coefficient_nobody_looks_at_the_reference() -> None:
    assert loss_of(ObjectiveSettings(), None) == loss_of(ObjectiveSettings(), jnp.full((1, 2), np.nan))


def test_the_penalty_is_weighted_and_added_per_token() -> None:
    reference = jnp.array([[-1.5, -2.5]])
    free = loss_of(ObjectiveSettings(), None)
    held = loss_of(ObjectiveSettings(kl_coef=0.1), reference)
    assert held - free == pytest.approx(0.1 * (np.exp(-0.5) - 1 + 0.5), rel=1e-4)
    held = loss_of(ObjectiveSettings(kl_coef=0.1, kl_estimator="k2"), reference)
    assert held - free == pytest.approx(0.1 * 0.125, rel=1e-4)
    # The loss is minus the mean advantage, for the ratio is 1: 0.5 nats of both tokens, then of the second.
    held = loss_of(ObjectiveSettings(kl_coef=0.1, kl_estimator="k1", kl_in="reward"), reference)
    assert held - free == pytest.approx(0.1 * (1.0 + 0.5) / 2, rel=1e-4)


def test_a_penalty_needs_the_logprobs_of_the_reference() -> None:
    with pytest.raises(RecordError, match="needs its logprobs"):
        loss_of(ObjectiveSettings(kl_coef=0.1), None)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"kl_estimator": "k1"}, "expected gradient is 0"),
        ({"kl_in": "reward", "loss": "cross_entropy"}, "changes advantages"),
    ],
)
def test_a_penalty_that_would_do_nothing_is_refused(choice: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ObjectiveSettings(kl_coef=0.1, **choice)
