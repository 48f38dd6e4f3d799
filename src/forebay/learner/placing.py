"""Arrays that every process of a learner has on its host, placed on the devices of all of them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding


def put(tree: Any, sharding: NamedSharding, *, may_alias: bool = True) -> Any:
    """Place arrays; each process copies what its own devices hold.

    Args:
        tree: NumPy arrays, the same in every process; or JAX arrays that every process has whole.
        sharding: Where they go.
        may_alias: Whether the placed arrays may share the memory of those given; not if they are donated.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding, may_alias=None if may_alias else False)
    return jax.tree.map(lambda array: _put_parts(np.asarray(array), sharding), tree)


def _put_parts(array: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
    # A copy of its own for each device: whoever gets the array may donate it.
    parts = [
        jax.device_put(array[index], device, may_alias=False)
        for device, index in sharding.addressable_devices_indices_map(array.shape).items()
    ]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)
