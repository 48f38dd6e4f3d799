from __future__ import annotations

import jax.numpy as jnp
import pytest

from forebay.errors import RecordError
from forebay.objectives.shapes import same_shape


def test_arrays_of_one_shape_pass() -> None:
    same_shape(a=jnp.zeros((2, 3)), b=jnp.zeros((2, 3), dtype=bool))


@pytest.mark.parametrize("shape", [(2, 4), (1, 3), (3,), (2, 3, 1)])
def test_broadcastable_or_longer_arrays_are_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(RecordError, match=r"logprobs \[2, 3\], mask \[") as caught:
        same_shape(logprobs=jnp.zeros((2, 3)), mask=jnp.zeros(shape))
    assert caught.value.reason == "shape_mismatch"


def test_rank_is_part_of_the_contract() -> None:
    with pytest.raises(RecordError):
        same_shape(a=jnp.zeros(3), b=jnp.zeros(3))
