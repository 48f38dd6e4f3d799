"""How parameters, rows and tokens lie on the device mesh, and the collectives that the model needs for it.

| mesh axis | splits of parameters           | splits of rows [B, T] | splits of the tokens between blocks |
|-----------|--------------------------------|-----------------------|-------------------------------------|
| data      | nothing                        | rows                  | with their rows                     |
| fsdp      | the residual width             | rows                  | with their rows                     |
| context   | nothing                        | nothing               | every row, into two chunks a shard  |
| tensor    | heads, feed-forward width,     | nothing               | what is left, into even parts       |
|           | vocabulary                     |                       |                                     |
| expert    | experts; nothing of the others | rows                  | with their rows                     |

`PARAMETER_AXES` and `ROW_AXES` are the first two columns; `Axes` does the third. A mesh axis of size 1 is
none at all: nothing is split over it, and the compiled programs of one device hold no collective.

Legend: B rows, T tokens of a row, C size of `context`, S tokens of a shard, D model width.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Shaped

from forebay.errors import ConfigError
from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, parameters_of, place
from forebay.models.mesh_axes import MESH_AXIS_NAMES, PARAMETER_AXES, ROW_AXES, check_num_devices
from forebay.models.settings import MeshSettings


@dataclass(frozen=True, slots=True)
class Axes:
    """The mesh axes that code inside a `shard_map` runs under, and every collective of dense blocks.

    Args:
        data: Axis over which all shards hold the same parameters; None, here and below, where there is none.
        fsdp: Axis that parameters are gathered over.
        context: Axis that the tokens of a row are split over.
        tensor: Axis of the heads, the feed-forward width and the vocabulary, and of tokens between blocks.
        expert: Axis of the experts.
    """

    data: str | None = None
    fsdp: str | None = None
    context: str | None = None
    tensor: str | None = None
    expert: str | None = None

    @classmethod
    def of(cls, mesh: Mesh) -> Axes:
        """Return the axes of a mesh that split anything."""
        return cls(**{name: name for name in MESH_AXIS_NAMES if mesh.shape[name] > 1})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all of them."""
        every = (self.data, self.fsdp, self.context, self.tensor, self.expert)
        return tuple(name for name in every if name is not None)

    def gather(self, value: Array, parameter: Parameter, dtype: DTypeLike) -> Array:
        """Return a parameter whole along the residual width, in the type of the computation.

        The transpose reduces its gradient in the type of `value`: float32 for master weights, whatever the
        computation's. Gradients are scattered over `fsdp` first, so that only shards are added over the axes
        that the parameter is not split over.

        Args:
            value: This shard of the parameter.
            parameter: Which one it is.
            dtype: Type of the result.
        """
        split_by = [PARAMETER_AXES.get(axis) for axis in parameter.axes]
        copied = tuple(name for name in self.names if name not in split_by)
        if copied:
            # Copies count as different values: the transpose adds their gradients.
            value = jax.lax.pcast(value, copied, to="varying")
        if self.fsdp is None or "fsdp" not in split_by:
            return value.astype(dtype)
        return _gathered(value, self.fsdp, split_by.index("fsdp"), jnp.dtype(dtype), value.dtype)

    def enter(self, h: Shaped[Array, "S *rest"]) -> Shaped[Array, "S_all *rest"]:
        """Gather the tokens of the tensor shards, in order: what projections split over `tensor` work on."""
        return h if self.tensor is None else jax.lax.all_gather(h, self.tensor, axis=0, tiled=True)

    def leave(self, partial: Float[Array, "S_all D"]) -> Float[Array, "S D"]:
        """Add the partial results of the tensor shards and keep this shard's tokens: the way back."""
        if self.tensor is None:
            return partial
        return jax.lax.psum_scatter(partial, self.tensor, scatter_dimension=0, tiled=True)

    def all_tokens(self, own: Shaped[Array, "S *rest"]) -> Shaped[Array, "S_all *rest"]:
        """Gather what is known of the tokens of the tensor shards; all shards then count as one."""
        return (
            own if self.tensor is None else jax.lax.all_gather(own, self.tensor, tiled=True, to="invarying")
        )

    def own_tokens(self, rows: Shaped[Array, "B T *rest"]) -> Shaped[Array, "B T_own *rest"]:
        """Take this context shard's tokens out of whole rows, in the order of the row.

        A row is cut into 2 C chunks, of which shard i has chunks i and 2 C - 1 - i: early tokens see few
        others and late ones many, so each shard has as much to attend to.
        """
        if self.context is None:
            return rows
        size, index = jax.lax.axis_size(self.context), jax.lax.axis_index(self.context)
        chunks = rows.reshape(rows.shape[0], 2 * size, -1, *rows.shape[2:])
        own = jnp.stack([index, 2 * size - 1 - index])
        return chunks[:, own].reshape(rows.shape[0], -1, *rows.shape[2:])

    def whole_rows(
        self, own: Shaped[Array, "B T_own *rest"], *, shared: bool = False
    ) -> Shaped[Array, "B T *rest"]:
        """Put the tokens of the context shards together to whole rows; undoes `own_tokens`.

        Args:
            own: This shard's tokens.
            shared: Whether all shards go on to compute the same of them, which then counts once.
        """
        if self.context is None:
            return own
        chunks = own.reshape(own.shape[0], 2, -1, *own.shape[2:])
        every = jax.lax.all_gather(chunks, self.context, to="invarying" if shared else "varying")
        ordered = jnp.concatenate([every[:, :, 0], every[::-1, :, 1]])
        return jnp.moveaxis(ordered, 0, 1).reshape(own.shape[0], -1, *own.shape[2:])

    def sum_rows(self, value: Float[Array, ""]) -> Float[Array, ""]:
        """Add what shards with different rows have measured."""
        names = tuple(name for name in self.names if name in ROW_AXES)
        return jax.lax.psum(value, names) if names else value

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gathered(shard: Array, name: str, axis: int, dtype: np.dtype, reduced: np.dtype) -> Array:
    """Gather in one type and reduce gradients in another: the transpose of a cast would round first."""
    return jax.lax.all_gather(shard.astype(dtype), name, axis=axis, tiled=True)


def _gathered_forward(
    shard: Array, name: str, axis: int, dtype: np.dtype, reduced: np.dtype
) -> tuple[Array, None]:
    return jax.lax.all_gather(shard.astype(dtype), name, axis=axis, tiled=True), None


def _gathered_backward(
    name: str, axis: int, dtype: np.dtype, reduced: np.dtype, _: None, d_whole: Array
) -> tuple[Array]:
    return (jax.lax.psum_scatter(d_whole.astype(reduced), name, scatter_dimension=axis, tiled=True),)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def find_devices() -> list[jax.Device]:
    """Return the devices of the platform that JAX runs on.

    Raises:
        ConfigError: There is none: `JAX_PLATFORMS` names one that this machine lacks, or its driver fails.
    """
    try:
        return list(jax.devices())
    except (RuntimeError, AssertionError) as error:  # the latter where a platform's plug-in is missing
        wanted = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        raise ConfigError(
            f"JAX finds no device: {next(iter(str(error).splitlines()), wanted)}",
            remedy="Unset JAX_PLATFORMS or set it to one that is there, such as cpu; see forebay doctor.",
        ) from None


def make_mesh(settings: MeshSettings, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Build the mesh of `MESH_AXIS_NAMES`, neighbors in the network where the platform has one.

    Args:
        settings: Sizes of the axes.
        devices: Devices to use; by default the first of `find_devices()`.

    Raises:
        ConfigError: There are fewer devices than the product of the sizes, or none at all.
    """
    available = find_devices() if devices is None else list(devices)
    sizes = tuple(getattr(settings, name) for name in MESH_AXIS_NAMES)
    check_num_devices(settings, len(available))
    used = available[: settings.num_devices]
    if used[0].platform == "cpu":
        grid = np.asarray(used).reshape(sizes)
    else:
        grid = mesh_utils.create_device_mesh(sizes, used, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXIS_NAMES, axis_types=(AxisType.Auto,) * len(MESH_AXIS_NAMES))


def check_rows(shape: tuple[int, int], mesh: Mesh) -> None:
    """Refuse rows that the mesh cannot split evenly.

    Args:
        shape: (rows, length) of a micro-batch.
        mesh: From `make_mesh`.

    Raises:
        ConfigError: Names what is split, the number that it must be a multiple of, and where it comes from.
    """
    rows, length = shape
    bucket = f"a bucket of {rows} rows x {length} tokens cannot be split over the mesh"
    shards = {name: mesh.shape[name] for name in MESH_AXIS_NAMES}
    num_row_shards = shards["data"] * shards["fsdp"] * shards["expert"]
    if rows % num_row_shards:
        raise ConfigError(
            bucket,
            got=f"{rows} rows",
            limit=f"a multiple of data x fsdp x expert = {num_row_shards}",
            remedy="Change the rows of the bucket, or lower mesh.data, mesh.fsdp or mesh.expert.",
        )
    context = shards["context"]
    if context > 1 and length % (2 * context):
        raise ConfigError(
            bucket,
            got=f"{length} tokens in a row",
            limit=f"a multiple of 2 x context = {2 * context}",
            remedy="Change the length of the bucket, or lower mesh.context.",
        )
    num_tokens = rows // num_row_shards * length // context
    if num_tokens % shards["tensor"]:
        raise ConfigError(
            bucket,
            got=f"{rows // num_row_shards} rows x {length} tokens / context {context} = {num_tokens} tokens",
            limit=f"a multiple of tensor = {shards['tensor']}",
            remedy="Change the length of the bucket, or lower mesh.tensor.",
        )


def parameter_spec(parameter: Parameter) -> PartitionSpec:
    """Return how one parameter is split; block parameters have an unsplit leading layer axis."""
    axes = tuple(PARAMETER_AXES.get(axis) for axis in parameter.axes)
    return PartitionSpec(None, *axes) if parameter.in_layers else PartitionSpec(*axes)


def parameter_specs(config: ModelConfig) -> dict[str, Any]:
    """Return the partition specs of a model, shaped like its parameter tree."""
    specs: dict[str, Any] = {}
    for parameter in parameters_of(config):
        place(specs, parameter, parameter_spec(parameter))
    return specs


def row_spec() -> PartitionSpec:
    """Return how [B, T] arrays are split: by rows. A shard takes its tokens out of whole rows itself."""
    return PartitionSpec(ROW_AXES, None)


def split_specs(mesh: Mesh, specs: Any) -> Any:
    """Leave out of a tree of partition specs the mesh axes that split nothing, as `Axes` does."""

    def kept(entry: Any) -> Any:
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        names = tuple(name for name in names if mesh.shape[name] > 1)
        return names or None

    return _map_specs(lambda spec: PartitionSpec(*map(kept, spec)), specs)


def shardings(mesh: Mesh, specs: Any) -> Any:
    """Turn a tree of partition specs into a tree of shardings on `mesh`."""
    return _map_specs(lambda spec: NamedSharding(mesh, spec), specs)


def _map_specs(change: Any, specs: Any) -> Any:
    return jax.tree.map(change, specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
