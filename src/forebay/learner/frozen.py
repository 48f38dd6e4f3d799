"""Weights that no step changes, on the mesh: the model under adapters, in the type of the computation."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, DTypeLike

from forebay.errors import ConfigError
from forebay.learner.placing import put
from forebay.models.config import ModelConfig
from forebay.models.params import Params, abstract_params
from forebay.models.sharding import parameter_specs, shardings


class Frozen:
    """What every program but the update reads beside what is trained.

    It has no gradient, no moments and no float32 master copy. A learner that trains the model itself has none
    of it, and its programs read nothing more.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        dtype: Type of the computation, in which the weights are held.
        is_model: Whether the model is frozen.

    Attributes:
        specs: Partition specs of the weights; empty if there are none.
        abstract: Their shapes, types and shardings.
    """

    def __init__(self, config: ModelConfig, mesh: Mesh, dtype: DTypeLike, *, is_model: bool) -> None:
        self.specs: dict[str, Any] = parameter_specs(config) if is_model else {}
        self.abstract: Params = _abstract(config, dtype, shardings(mesh, self.specs)) if is_model else {}
        self._weights: Params | None = None if is_model else {}

    def hold(self, params: Params) -> None:
        """Place the weights on the mesh; once.

        Args:
            params: The model's parameter tree where adapters are trained; else nothing, `{}`.
        """
        self._weights = jax.tree.map(_placed, params, self.abstract)

    @property
    def weights(self) -> Params:
        """The weights, on the mesh.

        Raises:
            ConfigError: There should be some, and `hold` was not called.
        """
        if self._weights is None:
            raise ConfigError("adapters are trained on a model that is held, and none is", got=None)
        return self._weights


def _abstract(config: ModelConfig, dtype: DTypeLike, to: Any) -> Params:
    shapes = abstract_params(config, dtype)
    return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes, to)


def _placed(leaf: Any, like: jax.ShapeDtypeStruct) -> Array:
    return put(np.asarray(leaf, like.dtype), like.sharding)
