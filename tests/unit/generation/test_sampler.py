from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.generation.sampler import distribution, sample, support

CASES = json.loads((Path(__file__).parents[2] / "golden" / "expected.json").read_text())


def one(logits: list[float], temperature: float, top_p: float = 1.0, top_k: int = 0) -> np.ndarray:
    row = distribution(
        jnp.array([logits], jnp.float32),
        jnp.array([temperature], jnp.float32),
        jnp.array([top_p], jnp.float32),
        jnp.array([top_k], jnp.int32),
    )
    return np.asarray(row[0])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
def test_c26_temperature_is_in_the_logprob(temperature: float) -> None:
    case = CASES["C26"]
    expected = case["expect"]["table"][str(temperature)]
    np.testing.assert_allclose(one(case["input"]["logits"], temperature), expected, atol=2e-6)


def test_c26_greedy_takes_the_likeliest_and_records_temperature_one() -> None:
    logits = jnp.array([[2.0, 1.0, 0.0, -1.0]] * 3)
    ones = jnp.ones(3)
    tokens, logprobs = sample(
        logits, jnp.arange(6, dtype=jnp.uint32).reshape(3, 2), jnp.arange(3), 0 * ones, ones, jnp.full(3, 2)
    )
    assert tokens.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logprobs, [-0.44019] * 3, atol=2e-6)


def test_c82_padding_ids_have_no_probability() -> None:
    case = CASES["C82"]
    logits = np.array(case["input"]["logits"], np.float32)
    logits[case["input"]["tokenizer_vocab"] :] = -np.inf
    logprobs = one(logits.tolist(), 1.0)
    assert logprobs[12] == pytest.approx(case["expect"]["logp_token12"], abs=1e-5)
    assert np.all(np.isneginf(logprobs[37:]))
    assert np.isfinite(logprobs[:37]).all()


def test_top_k_and_top_p_keep_the_likeliest_and_renormalize() -> None:
    probabilities = np.array([0.1, 0.5, 0.25, 0.15])
    logits = np.log(probabilities).tolist()
    np.testing.assert_allclose(np.exp(one(logits, 1.0, top_k=2)), [0, 2 / 3, 1 / 3, 0], atol=1e-6)
    # 0.5 alone does not reach 0.6; with 0.25 it does.
    np.testing.assert_allclose(np.exp(one(logits, 1.0, top_p=0.6)), [0, 2 / 3, 1 / 3, 0], atol=1e-6)
    # Of the three kept by k, renormalized to 0.556, 0.278, 0.167, two reach 0.8.
    both = one(logits, 1.0, top_p=0.8, top_k=3)
    np.testing.assert_allclose(np.exp(both), [0, 2 / 3, 1 / 3, 0], atol=1e-6)


def test_off_keeps_everything_even_where_rounding_hides_the_tail() -> None:
    logits = jnp.array([[0.0, -60.0, -80.0]], jnp.float32)
    assert bool(support(logits, jnp.ones(1), jnp.zeros(1, jnp.int32)).all())


def test_a_truncated_neighbour_changes_nothing() -> None:
    logits = jax.random.normal(jax.random.key(0), (2, 16))
    ones, none = jnp.ones(2), jnp.zeros(2, jnp.int32)
    alone = distribution(logits, ones, ones, none)
    beside = distribution(logits, ones, ones.at[1].set(0.5), none)
    np.testing.assert_array_equal(alone[0], beside[0])
    assert np.isneginf(beside[1]).any()


def test_randomness_is_of_seed_and_position_alone() -> None:
    logits = jnp.zeros((4, 1000))
    ones, none = jnp.ones(4), jnp.zeros(4, jnp.int32)
    seeds = jnp.array([[0, 7], [0, 7], [0, 8], [1, 7]], jnp.uint32)
    tokens, _ = sample(logits, seeds, jnp.array([3, 4, 3, 3]), ones, ones, none)
    again, _ = sample(logits[::-1], seeds[::-1], jnp.array([3, 3, 4, 3]), ones, ones, none)
    assert tokens.tolist() == again[::-1].tolist()
    assert len(set(tokens.tolist())) == 4
