"""The table of what each mesh axis splits; no JAX, so that arithmetic about meshes can use it too.

`sharding` says in words what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay.errors import ConfigError
from forebay.models.config import ModelConfig
from forebay.models.layout import axis_sizes
from forebay.models.settings import MeshSettings

MESH_AXIS_NAMES: Final = ("data", "fsdp", "context", "tensor", "expert")
# Mesh axes that split the rows of a batch.
ROW_AXES: Final = ("data", "fsdp", "expert")
# Logical axis of a parameter -> mesh axis that splits it; absent means not split.
PARAMETER_AXES: Final = {
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "expert",
}


def check_divisible(config: ModelConfig, mesh: Mapping[str, int]) -> None:
    """Refuse a model whose axes the mesh cannot split evenly.

    Args:
        config: The model.
        mesh: Size of every mesh axis, by its name.

    Raises:
        ConfigError: Names the axis, its length and the mesh size.
    """
    for axis, size in axis_sizes(config).items():
        mesh_axis = PARAMETER_AXES.get(axis)
        if mesh_axis is not None and size % mesh[mesh_axis]:
            raise ConfigError(
                f"the mesh cannot split the model: {axis} {size} is not a multiple of {mesh_axis}",
                got=mesh[mesh_axis],
                remedy=f"Choose mesh.{mesh_axis} among the divisors of {size}.",
            )


def check_num_devices(settings: MeshSettings, available: int) -> None:
    """Refuse a mesh of more devices than there are.

    Args:
        settings: Sizes of the axes.
        available: Devices that JAX finds.

    Raises:
        ConfigError: With the arithmetic.
    """
    if available >= settings.num_devices:
        return
    product = " x ".join(f"{name} {getattr(settings, name)}" for name in MESH_AXIS_NAMES)
    raise ConfigError(
        f"mesh {product} needs more devices",
        got=available,
        limit=settings.num_devices,
        remedy="Lower the sizes under [mesh], or start on a machine with more devices.",
    )
