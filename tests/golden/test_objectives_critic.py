"""GAE, V-trace and credit by turn against sums in float64, and against what rlax makes of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.objectives.gae import generalized_advantages
from forebay.objectives.turn_credit import turn_returns
from forebay.objectives.value_loss import value_errors
from forebay.objectives.vtrace import vtrace
from tests.golden import critic_oracle as oracle

RLAX = json.loads((Path(__file__).parent / "rlax.json").read_text())["cases"]
LENGTHS = (1, 7, 2, 12, 5, 1)
mixes = pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.97, 0.0)])


class Arrays(NamedTuple):
    """The sampled tokens of some episodes, one after another."""

    log_ratios: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    last_values: np.ndarray
    lengths: np.ndarray


def arrays(episodes: list[oracle.Episode]) -> Arrays:
    steps = [step for episode in episodes for step in episode.sampled]
    return Arrays(
        np.array([step.log_ratio for step in steps]),
        np.array([step.reward for step in steps]),
        np.array([step.value for step in steps]),
        np.array([episode.last_value for episode in episodes]),
        np.array([len(episode.sampled) for episode in episodes]),
    )


def joined(parts: list[list[float]]) -> np.ndarray:
    return np.array([value for part in parts for value in part])


@mixes
@pytest.mark.parametrize("seed", range(3))
def test_generalized_advantages_match_the_oracle(gamma: float, lam: float, seed: int) -> None:
    episodes = oracle.random_episodes(seed, LENGTHS)
    given = arrays(episodes)
    credit = generalized_advantages(*given[1:], gamma=gamma, gae_lambda=lam)
    np.testing.assert_allclose(
        credit.advantages, joined([oracle.gae(e, gamma, lam) for e in episodes]), rtol=1e-12, atol=1e-12
    )
    returns = joined([oracle.lambda_returns(e, gamma, lam) for e in episodes])
    np.testing.assert_allclose(credit.targets, returns, rtol=1e-12, atol=1e-12)


@mixes
@pytest.mark.parametrize(("rho_cap", "c_cap"), [(1.0, 1.0), (2.0, 1.0), (1.5, 1.2), (math.inf, math.inf)])
def test_vtrace_matches_the_oracle(gamma: float, lam: float, rho_cap: float, c_cap: float) -> None:
    episodes = oracle.random_episodes(5, LENGTHS)
    credit = vtrace(*arrays(episodes), gamma=gamma, trace_lambda=lam, rho_cap=rho_cap, c_cap=c_cap)
    expected = [oracle.vtrace(e, gamma, lam, rho_cap, c_cap) for e in episodes]
    np.testing.assert_allclose(credit.targets, joined([t for t, _ in expected]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(credit.advantages, joined([a for _, a in expected]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", RLAX, ids=lambda case: f"{len(case['rewards'])}-{case['rho_cap']}")
def test_vtrace_and_gae_are_those_of_rlax(case: dict[str, Any]) -> None:
    check_against(case)


def test_vtrace_and_gae_are_those_of_rlax_as_installed() -> None:
    rlax = pytest.importorskip("rlax")
    with jax.enable_x64(True):
        for case in RLAX:
            length = len(case["rewards"])
            values = [*case["values"], case["last_value"]]
            r, v, discounts, log_ratios = (
                jnp.asarray(x, jnp.float64)
                for x in (case["rewards"], values, [case["gamma"]] * length, case["log_ratios"])
            )
            caps = (case["lam"], case["rho_cap"], case["rho_cap"])
            made = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, discounts, jnp.exp(log_ratios), *caps)
            gae = rlax.truncated_generalized_advantage_estimation(r, discounts, case["lam"], v)
            check_against(case | {"errors": made.errors, "pg_advantage": made.pg_advantage, "gae": gae})


def check_against(case: dict[str, Any]) -> None:
    rewards, values, log_ratios = (np.array(case[name]) for name in ("rewards", "values", "log_ratios"))
    end, lengths = np.array([case["last_value"]]), np.array([len(rewards)])
    gamma, lam, cap = case["gamma"], case["lam"], case["rho_cap"]
    credit = vtrace(
        log_ratios, rewards, values, end, lengths, gamma=gamma, trace_lambda=lam, rho_cap=cap, c_cap=1.0
    )
    np.testing.assert_allclose(credit.targets - values, case["errors"], rtol=1e-9, atol=1e-12)
    weights = np.minimum(np.exp(log_ratios), cap)
    np.testing.assert_allclose(weights * credit.advantages, case["pg_advantage"], rtol=1e-9, atol=1e-12)
    gae = generalized_advantages(rewards, values, end, lengths, gamma=gamma, gae_lambda=lam)
    np.testing.assert_allclose(gae.advantages, case["gae"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_turn_returns_match_the_oracle(gamma: float) -> None:
    rng = np.random.default_rng(3)
    group = [rng.normal(size=size) for size in (3, 1, 5, 2)]
    result = turn_returns([*group, None, np.empty(0)], gamma=gamma)
    expected = oracle.turn_returns([*(own.tolist() for own in group), None, []], gamma)
    assert result.turn_advantages is not None
    for got, want in zip(result.turn_advantages, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert result.turn_advantages[2][3:].tolist() == [0.0, 0.0]  # nobody else came as far
    assert result.scored.tolist() == [True, True, True, True, False, True]


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("huber", [0.5, None])
def test_the_value_loss_and_its_gradient_match_the_oracle(clip: float | None, huber: float | None) -> None:
    rng = np.random.default_rng(9)
    values, old, targets = (rng.normal(size=(4, 8)).astype(np.float32) for _ in range(3))
    old = (values + 0.4 * (old - values)).astype(np.float32)
    bounds = (clip or math.inf, huber or math.inf)

    def total(values: jax.Array) -> jax.Array:
        return value_errors(values, jnp.asarray(old), jnp.asarray(targets), clip=clip, huber=huber).sum()

    losses = value_errors(*map(jnp.asarray, (values, old, targets)), clip=clip, huber=huber)
    gradient = np.asarray(jax.grad(total)(jnp.asarray(values)))
    for place in np.ndindex(values.shape):
        v, o, t = (float(array[place]) for array in (values, old, targets))
        assert losses[place] == pytest.approx(oracle.value_loss(v, o, t, *bounds), rel=1e-5)
        ends = [oracle.value_loss(v + sign * 1e-6, o, t, *bounds) for sign in (1, -1)]
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-4)
