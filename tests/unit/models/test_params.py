from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from forebay.models.layout import parameters_of, pick
from forebay.models.params import cast, init_params, split_layers
from tests.unit.models import tiny

WIDE = dataclasses.replace(tiny.CONFIG, hidden_size=128, intermediate_size=256, tie_word_embeddings=False)


def test_shapes_and_count() -> None:
    params = init_params(WIDE, jax.random.key(0))
    for parameter in parameters_of(WIDE):
        layers = (WIDE.num_layers,) if parameter.in_layers else ()
        assert pick(params, parameter).shape == layers + parameter.shape(WIDE)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == WIDE.num_parameters


def test_scale_of_the_draw() -> None:
    params = init_params(WIDE, jax.random.key(0))
    assert (np.asarray(params["final_norm"]) == 1).all()
    np.testing.assert_allclose(np.std(params["layers"]["up_proj"]), 0.02, rtol=0.05)
    np.testing.assert_allclose(
        np.std(params["layers"]["down_proj"]), 0.02 / 2, rtol=0.05
    )  # sqrt(2 * 2 layers)


def test_a_key_decides_the_numbers() -> None:
    first, again, other = (init_params(tiny.CONFIG, jax.random.key(seed)) for seed in (1, 1, 2))
    assert (first["embedding"] == again["embedding"]).all()
    assert (first["embedding"] != other["embedding"]).any()
    assert (first["layers"]["q_proj"][0] != first["layers"]["q_proj"][1]).any()


def test_split_layers_and_cast() -> None:
    params = tiny.params()
    split = split_layers(cast(params, jnp.bfloat16))
    assert len(split["layers"]) == 2
    assert split["layers"][1]["k_proj"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        split["layers"][1]["k_proj"], np.asarray(params["layers"]["k_proj"][1].astype(jnp.bfloat16))
    )
