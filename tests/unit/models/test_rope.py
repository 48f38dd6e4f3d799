from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.config import ModelConfig
from forebay.models.frequencies import attention_factor, inverse_frequencies
from forebay.models.layer_kinds import LayerKind
from forebay.models.rope import rotate, rotation
from forebay.models.rope_scaling import RopeScaling
from tests.unit.models import tiny

WIDE = dataclasses.replace(tiny.CONFIG, head_size=64, rope_theta=500_000.0)


def test_plain_and_linear_frequencies() -> None:
    plain = inverse_frequencies(tiny.CONFIG)
    np.testing.assert_allclose(plain, [1.0, 0.01], rtol=1e-6)
    linear = dataclasses.replace(tiny.CONFIG, rope_scaling=RopeScaling("linear", 4.0))
    np.testing.assert_allclose(inverse_frequencies(linear), [0.25, 0.0025], rtol=1e-6)


def test_llama3_keeps_fast_divides_slow_and_blends_between() -> None:
    scaled = dataclasses.replace(WIDE, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    base, got = inverse_frequencies(WIDE), inverse_frequencies(scaled)
    wavelengths = 2 * np.pi / base
    fast, slow = wavelengths < 8192 / 4, wavelengths > 8192
    np.testing.assert_array_equal(got[fast], base[fast])
    np.testing.assert_allclose(got[slow], base[slow] / 8, rtol=1e-6)
    between = got[~fast & ~slow] / base[~fast & ~slow]
    assert len(between) > 0
    assert ((between > 1 / 8) & (between < 1)).all()


def test_rotation_is_by_position_and_keeps_length() -> None:
    heads = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 4)), jnp.float32)
    positions = jnp.array([[0, 1, 5], [0, 2, 3]])
    turned = rotate(heads, rotation(tiny.CONFIG, positions))
    np.testing.assert_array_equal(turned[:, 0], heads[:, 0])
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(heads, axis=-1), rtol=1e-5)
    # channel 0 turns with channel 2 (half the head apart) by 5 radians at position 5
    a, b = heads[0, 2, 1, 0], heads[0, 2, 1, 2]
    np.testing.assert_allclose(turned[0, 2, 1, 0], a * np.cos(5) - b * np.sin(5), rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "scaling", "frequencies", "factor"),
    [
        (
            dataclasses.replace(tiny.CONFIG, head_size=16, rope_theta=1e6),
            RopeScaling("yarn", 4.0, original_max_position=32768),
            (
                *(1.0, 0.177827939, 0.0316227786, 0.00421755994),
                *(0.000500000024, 4.44569851e-05, 7.90569356e-06, 1.40585337e-06),
            ),
            1.138629436111989,
        ),
        (
            dataclasses.replace(tiny.CONFIG, head_size=16),
            RopeScaling(
                "yarn",
                2.5,
                original_max_position=4096,
                beta_fast=8.0,
                beta_slow=2.0,
                attention_factor=1.5,
            ),
            (
                *(1.0, 0.316227764, 0.100000001, 0.0316227786),
                *(0.00799999945, 0.00189736672, 0.00039999999, 0.000126491112),
            ),
            1.5,
        ),
    ],
)
def test_yarn_is_that_of_transformers(
    config: ModelConfig, scaling: RopeScaling, frequencies: tuple[float, ...], factor: float
) -> None:
    """Values of `transformers.modeling_rope_utils` 5.24."""
    stretched = dataclasses.replace(config, rope_scaling=scaling)
    np.testing.assert_allclose(inverse_frequencies(stretched), frequencies, rtol=1e-5)
    np.testing.assert_allclose(attention_factor(stretched), factor)
    turn = rotation(stretched, jnp.zeros(1, jnp.int32))
    np.testing.assert_allclose(turn.cos, factor, rtol=1e-6)


def test_a_block_with_a_base_of_its_own_is_not_stretched() -> None:
    scaled = dataclasses.replace(tiny.CONFIG, rope_scaling=RopeScaling("linear", 8.0))
    local = LayerKind(window=4, rope_theta=10_000.0)
    np.testing.assert_allclose(inverse_frequencies(scaled, local), [1.0, 0.01], rtol=1e-6)
