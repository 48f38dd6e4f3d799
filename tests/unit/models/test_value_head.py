from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from forebay.models.hf import from_hf_tensors, to_hf_tensors
from forebay.models.logprobs import hidden_logprobs, to_targets, token_logprobs
from forebay.models.params import Params
from forebay.models.transformer import forward
from forebay.models.value_head import state_values, value_head_specs, with_value_head
from tests.unit.models import tiny

SEGMENTS, POSITIONS = (jnp.asarray(array[None]) for array in tiny.packed_row([3, 4], 9))
TOKENS = jnp.array([[5, 6, 7, 8, 9, 10, 11, 0, 0]], jnp.int32)


def with_random_head() -> Params:
    rng = np.random.default_rng(4)
    return {
        **with_value_head(tiny.params(), tiny.CONFIG),
        "value_head": rng.normal(size=tiny.CONFIG.hidden_size).astype(np.float32),
        "value_bias": np.float32(0.25),
    }


def values_of(params: Params, tokens: Array, segments: Array, positions: Array) -> np.ndarray:
    hidden = forward(params, tiny.CONFIG, tokens, segments, positions)
    return np.asarray(state_values(params, hidden[0], tokens.shape))


def test_a_value_is_a_line_through_the_hidden_state() -> None:
    params = with_random_head()
    hidden = np.asarray(forward(params, tiny.CONFIG, TOKENS, SEGMENTS, POSITIONS), np.float64)
    expected = hidden @ np.asarray(params["value_head"], np.float64) + 0.25
    np.testing.assert_allclose(values_of(params, TOKENS, SEGMENTS, POSITIONS), expected, rtol=1e-5)


def test_a_token_gets_the_value_of_the_state_it_was_sampled_in() -> None:
    values = jnp.arange(9.0)[None] + 1
    assert to_targets(values, SEGMENTS)[0].tolist() == [0, 1, 2, 0, 4, 5, 6, 0, 0]


def test_a_value_depends_only_on_the_earlier_tokens_of_its_own_sequence() -> None:
    params = with_random_head()
    packed = values_of(params, TOKENS, SEGMENTS, POSITIONS)[0]
    for start, stop in ((0, 3), (3, 7)):
        shape = (1, stop - start)
        alone = values_of(
            params, TOKENS[:, start:stop], jnp.ones(shape, jnp.int32), jnp.arange(stop - start)[None]
        )
        np.testing.assert_allclose(packed[start:stop], alone[0], rtol=1e-5, atol=1e-5)


def test_a_new_head_says_0_everywhere() -> None:
    params = with_value_head(tiny.params(), tiny.CONFIG)
    assert not values_of(params, TOKENS, SEGMENTS, POSITIONS).any()


def test_what_is_published_has_no_value_head() -> None:
    tensors = to_hf_tensors(with_random_head(), tiny.CONFIG)
    assert not [name for name in tensors if "value" in name]
    assert set(from_hf_tensors(tensors, tiny.CONFIG)) == set(tiny.params())


def test_logprobs_of_given_hidden_states_are_the_same() -> None:
    params = tiny.params()
    temperature = jnp.ones(TOKENS.shape)
    hidden = forward(params, tiny.CONFIG, TOKENS, SEGMENTS, POSITIONS)
    apart = hidden_logprobs(params, tiny.CONFIG, hidden[0], TOKENS, SEGMENTS, temperature)
    together = token_logprobs(params, tiny.CONFIG, TOKENS, SEGMENTS, POSITIONS, temperature)
    for mine, its in zip(apart, together, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)


def test_the_head_is_split_as_a_norm_is() -> None:
    assert value_head_specs() == {"value_head": PartitionSpec("fsdp"), "value_bias": PartitionSpec()}
