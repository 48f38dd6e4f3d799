from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from forebay.objectives.ppo import clipped_surrogate


def test_asymmetric_clip_acts_only_where_the_move_was_already_rewarded() -> None:
    ratio = jnp.array([[0.5, 0.79, 0.81, 1.0, 1.27, 1.29]])
    up, up_clipped = clipped_surrogate(ratio, jnp.ones_like(ratio), clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(up, [[-0.5, -0.79, -0.81, -1.0, -1.27, -1.28]], rtol=1e-6)
    np.testing.assert_array_equal(up_clipped, [[False] * 5 + [True]])
    down, down_clipped = clipped_surrogate(ratio, -jnp.ones_like(ratio), clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(down, [[0.8, 0.8, 0.81, 1.0, 1.27, 1.29]], rtol=1e-6)
    np.testing.assert_array_equal(down_clipped, [[True, True, False, False, False, False]])


def test_zero_advantage_is_never_clipped() -> None:
    ratio = jnp.array([[0.1, 10.0]])
    loss, clipped = clipped_surrogate(ratio, jnp.zeros_like(ratio), clip_low=0.2, clip_high=0.28)
    np.testing.assert_array_equal(loss, [[0.0, 0.0]])
    assert not clipped.any()
