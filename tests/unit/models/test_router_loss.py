"""The losses and measures of routers against sums written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.experts import Experts
from forebay.models.moe import RouterSums, route
from forebay.models.router_loss import RouterLoss, router_loss, router_loss_weights, router_measures
from forebay.models.settings import ModelSettings
from forebay.models.sharding import UNSHARDED

# Two blocks, three experts, four tokens of two experts each.
SUMS = RouterSums(
    tokens=np.array([4.0, 4.0]),
    assigned=np.array([[4.0, 2.0, 2.0], [0.0, 4.0, 4.0]]),
    probability=np.array([[2.0, 1.0, 1.0], [0.4, 1.6, 2.0]]),
    squared_log_total=np.array([6.0, 10.0]),
    entropy=np.array([4.0, 2.0]),
    spilled=np.array([0.0, 1.0]),
)
# f = [4, 6, 6] / 8 and P = [2.4, 2.6, 3.0] / 8.
BALANCE = 3 * (4 * 2.4 + 6 * 2.6 + 6 * 3.0) / 64


def loss(weights: RouterLoss, num_tokens: float) -> float:
    sums = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), SUMS)
    return float(router_loss(sums, weights, jnp.float32(num_tokens), UNSHARDED))


def test_the_balance_loss_is_over_all_blocks_together() -> None:
    assert loss(RouterLoss(balance=1.0), 4) == pytest.approx(BALANCE, rel=1e-6)


def test_a_micro_batch_counts_by_its_share_of_the_tokens() -> None:
    assert loss(RouterLoss(balance=1.0), 16) == pytest.approx(BALANCE / 4, rel=1e-6)


def test_the_z_loss_is_the_mean_square_of_the_log_denominator() -> None:
    assert loss(RouterLoss(z=0.5), 4) == pytest.approx(0.5 * 16 / 8, rel=1e-6)


def test_only_probabilities_are_differentiated() -> None:
    """d/dp_e of a token is E f_e / (L N): the counts are constants."""
    h = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
    router = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)), jnp.float32)

    def of(router: jax.Array) -> jax.Array:
        _, sums = route(h, router, Experts(3, 2, 8), jnp.ones(4, bool))
        stacked = jax.tree.map(lambda value: value[None], sums)
        return router_loss(stacked, RouterLoss(balance=1.0), jnp.asarray(4.0), UNSHARDED)

    def written_out(router: jax.Array) -> jax.Array:
        probability = jax.nn.softmax(h @ router)
        chosen = jnp.zeros((4, 3)).at[jnp.arange(4)[:, None], jnp.argsort(-probability)[:, :2]].set(1.0)
        return 3 * (chosen.mean(axis=0) * probability.mean(axis=0)).sum()

    np.testing.assert_allclose(of(router), written_out(router), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(of)(router), jax.grad(written_out)(router), rtol=1e-4, atol=1e-7)


def test_measures() -> None:
    assert router_measures(SUMS) == pytest.approx(
        {
            "balance_loss": BALANCE,
            "imbalance": (4 / (8 / 3) + 4 / (8 / 3)) / 2,
            "imbalance_max": 4 / (8 / 3),
            "entropy": 6 / 8,
            "spilled": 1 / 16,
        }
    )


@pytest.mark.parametrize(
    ("asked", "supervised", "balance"),
    [(None, False, 0.0), (None, True, 0.02), (0.1, False, 0.1), (0.0, True, 0.0)],
)
def test_the_weight_is_the_models_own_only_in_supervised_training(
    asked: float | None, supervised: bool, balance: float
) -> None:
    experts = Experts(8, 2, 16, balance_coefficient=0.02) if supervised else None
    weights = router_loss_weights(ModelSettings(router_aux_coef=asked, router_z_coef=0.25), experts)
    assert weights == RouterLoss(balance, 0.25)
    assert weights.is_on
