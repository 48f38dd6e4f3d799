from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.errors import ConfigError
from forebay.learner.frozen import Frozen
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from tests.unit.models import tiny


def test_a_trained_model_leaves_nothing_frozen() -> None:
    frozen = Frozen(tiny.CONFIG, make_mesh(MeshSettings()), "bfloat16", is_model=False)
    assert (frozen.specs, frozen.abstract, frozen.weights) == ({}, {}, {})
    frozen.hold({})
    assert frozen.weights == {}


def test_a_frozen_model_is_held_split_and_in_the_type_of_the_computation() -> None:
    frozen = Frozen(tiny.CONFIG, make_mesh(MeshSettings(fsdp=2, tensor=2)), "bfloat16", is_model=True)
    params = tiny.params()
    with pytest.raises(ConfigError, match="adapters are trained on a model that is held, and none is"):
        assert frozen.weights
    frozen.hold(params)
    held = frozen.weights["layers"]["q_proj"]
    assert held.dtype == jnp.bfloat16
    assert held.addressable_shards[0].data.shape == (2, 8, 2, 4)
    np.testing.assert_array_equal(held, params["layers"]["q_proj"].astype(jnp.bfloat16))
    assert jax.tree.structure(frozen.weights) == jax.tree.structure(params)
