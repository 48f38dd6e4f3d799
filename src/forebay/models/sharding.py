"""How parameters and rows lie on the device mesh, and the collectives that the model needs because of it.

Parameters are split over `fsdp` along the residual width and over `tensor` along heads, feed-forward width
and vocabulary; rows are split over `data` and `fsdp`. `MESH_AXES` is the whole rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from forebay.errors import ConfigError
from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, axis_sizes, parameters_of, place
from forebay.models.settings import MeshSettings

MESH_AXIS_NAMES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")
# Logical axis of a parameter -> mesh axis that splits it; absent means not split.
MESH_AXES = {"embed": "fsdp", "vocab": "tensor", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor"}
GATHERED = "gathered_parameters"


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of the mesh axes that the code runs under, or None where it is not inside a `shard_map`.

    Args:
        data: Axis over which all shards hold the same parameters.
        fsdp: Axis that parameters are gathered over.
        tensor: Axis that partial sums of heads, feed-forward width and vocabulary are added over.
    """

    data: str | None = None
    fsdp: str | None = None
    tensor: str | None = None

    def gather(self, value: Array, parameter: Parameter) -> Array:
        """Return the parameter whole along the residual width; the transpose scatters its gradient."""
        if self.data is not None:
            # Varying before the gather, so that gradients are scattered first and only shards are added over
            # `data`.
            value = jax.lax.pcast(value, self.data, to="varying")
        if self.fsdp is not None:
            axis = parameter.axes.index("embed")
            value = jax.lax.all_gather(value, self.fsdp, axis=axis, tiled=True)
        return checkpoint_name(value, GATHERED)

    def sum_tensor(self, value: Array) -> Array:
        """Add the partial results of the tensor shards."""
        return value if self.tensor is None else jax.lax.psum(value, self.tensor)

    def max_tensor(self, value: Array) -> Array:
        """Return the largest value among the tensor shards."""
        return value if self.tensor is None else jax.lax.pmax(value, self.tensor)

    def vocab_start(self, local_rows: int) -> Array | int:
        """Return the first id of this shard's part of the vocabulary."""
        return 0 if self.tensor is None else jax.lax.axis_index(self.tensor) * local_rows


UNSHARDED = Axes()
SHARDED = Axes(data="data", fsdp="fsdp", tensor="tensor")


def make_mesh(settings: MeshSettings, devices: list[jax.Device] | None = None) -> Mesh:
    """Build the mesh `("data", "fsdp", "tensor")`.

    Args:
        settings: Sizes of the axes.
        devices: Devices to use; by default the first of `jax.devices()`.

    Raises:
        ConfigError: There are fewer devices than the product of the sizes.
    """
    available = jax.devices() if devices is None else devices
    if len(available) < settings.num_devices:
        raise ConfigError(
            f"mesh data {settings.data} x fsdp {settings.fsdp} x tensor {settings.tensor} needs more devices",
            got=len(available),
            limit=settings.num_devices,
            remedy="Lower the sizes under [mesh], or start on a machine with more devices.",
        )
    shape = (settings.data, settings.fsdp, settings.tensor)
    grid = np.asarray(available[: settings.num_devices]).reshape(shape)
    return Mesh(grid, MESH_AXIS_NAMES, axis_types=(AxisType.Auto,) * len(MESH_AXIS_NAMES))


def check_divisible(config: ModelConfig, mesh: Mesh) -> None:
    """Refuse a model whose axes the mesh cannot split evenly.

    Raises:
        ConfigError: Names the axis, its length and the mesh size.
    """
    for axis, size in axis_sizes(config).items():
        mesh_axis = MESH_AXES.get(axis)
        if mesh_axis is not None and size % mesh.shape[mesh_axis]:
            raise ConfigError(
                f"the mesh cannot split the model: {axis} {size} is not a multiple of {mesh_axis}",
                got=mesh.shape[mesh_axis],
                remedy=f"Choose mesh.{mesh_axis} among the divisors of {size}.",
            )


def parameter_spec(parameter: Parameter) -> PartitionSpec:
    """Return how one parameter is split; block parameters have an unsplit leading layer axis."""
    axes = tuple(MESH_AXES.get(axis) for axis in parameter.axes)
    return PartitionSpec(None, *axes) if parameter.in_layers else PartitionSpec(*axes)


def parameter_specs(config: ModelConfig) -> dict[str, Any]:
    """Return the partition specs of a model, shaped like its parameter tree."""
    specs: dict[str, Any] = {}
    for parameter in parameters_of(config):
        place(specs, parameter, parameter_spec(parameter))
    return specs


def row_spec() -> PartitionSpec:
    """Return how [B, T] arrays are split: rows over `data` and `fsdp`, tokens not at all."""
    return PartitionSpec(ROW_AXES, None)


def shardings(mesh: Mesh, specs: Any) -> Any:
    """Turn a tree of partition specs into a tree of shardings on `mesh`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )
