"""One way to train a model on a mesh: what is compiled, and how often it runs in a step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from forebay.errors import ConfigError
from forebay.models.config import ModelConfig
from forebay.models.layout import axis_sizes
from forebay.models.mesh_axes import PARAMETER_AXES
from forebay.models.settings import MeshSettings

Remat = Literal["none", "elementwise", "dots", "full"]
REMATS: Final[tuple[Remat, ...]] = get_args(Remat)
AXES: Final = tuple(MeshSettings.model_fields)


@dataclass(frozen=True, slots=True)
class Plan:
    """A mesh, a micro-batch and a step of some of them.

    Args:
        mesh: Sizes of the mesh axes.
        rows: Rows of a micro-batch, all shards together.
        length: Tokens of a row.
        micro_batches: Micro-batches of a step, their gradients accumulated.
        remat: What the backward pass recomputes.
    """

    mesh: MeshSettings
    rows: int
    length: int
    micro_batches: int
    remat: Remat

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.rows * self.length

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.micro_tokens * self.micro_batches

    @property
    def shard_tokens(self) -> int:
        """Tokens of a micro-batch that one device has while attention and the feed-forward layer work."""
        return self.micro_tokens // (self.mesh.row_multiple * self.mesh.context)

    @property
    def own_tokens(self) -> int:
        """Tokens of a micro-batch that one device keeps between them."""
        return self.shard_tokens // self.mesh.tensor

    def describe(self) -> str:
        """Return it in words.

        Example:
            >>> Plan(MeshSettings(fsdp=16, tensor=4), 16, 4096, 2, "full").describe()
            'fsdp=16,tensor=4, remat full, 2 x 16 rows of 4096 tokens'
        """
        repeats = f"{self.micro_batches} x " if self.micro_batches > 1 else ""
        return (
            f"{mesh_name(self.mesh)}, remat {self.remat}, {repeats}{self.rows} rows of {self.length} tokens"
        )


def mesh_name(mesh: MeshSettings) -> str:
    """Return a mesh as `parse_mesh` reads it.

    Example:
        >>> mesh_name(MeshSettings(fsdp=16, tensor=4))
        'fsdp=16,tensor=4'
    """
    sizes = mesh.model_dump()
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "data=1"


def parse_mesh(text: str, num_devices: int) -> MeshSettings:
    """Read a mesh, `fsdp=16,tensor=4`.

    Args:
        text: Sizes by axis; what is not named is 1.
        num_devices: What they must multiply to.

    Raises:
        ConfigError: It names no axis, or does not multiply to the devices.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*", part)
        if match is None or match[1] not in AXES or match[1] in sizes:
            raise ConfigError(
                "a mesh is sizes of axes, each once: fsdp=16,tensor=4", got=text, limit=", ".join(AXES)
            )
        sizes[match[1]] = int(match[2])
    mesh = MeshSettings(**sizes)
    if mesh.num_devices != num_devices:
        raise ConfigError(
            f"the mesh {text} does not multiply to the devices of the topology",
            got=mesh.num_devices,
            limit=num_devices,
            remedy="Change a size, or leave --mesh out to have meshes searched.",
        )
    return mesh


def refusal(config: ModelConfig, mesh: MeshSettings) -> str | None:
    """Return why a mesh cannot split a model evenly; None if it can."""
    for name, size in axis_sizes(config).items():
        axis = PARAMETER_AXES.get(name)
        if axis is not None and size % getattr(mesh, axis):
            return f"{name} {size} is not a multiple of {axis}={getattr(mesh, axis)}"
    return None


def check_length(config: ModelConfig, length: int) -> None:
    """Refuse rows that the model has no positions for.

    Raises:
        ConfigError: They are longer than its context.
    """
    if length > config.max_position:
        raise ConfigError(
            "rows are longer than the model's context",
            got=length,
            limit=config.max_position,
            remedy="Lower --length.",
        )


def check_plan(config: ModelConfig, plan: Plan) -> None:
    """Refuse a plan that cannot be compiled.

    Raises:
        ConfigError: The mesh cannot split the model, the rows or their tokens.
    """
    why = refusal(config, plan.mesh)
    if why is not None:
        raise ConfigError(f"the mesh cannot split the model: {why}", got=mesh_name(plan.mesh))
    if plan.length % plan.mesh.length_multiple:
        raise ConfigError(
            "the mesh cannot split the tokens of a row",
            got=plan.length,
            limit=f"a multiple of {plan.mesh.length_multiple}",
            remedy="Change --length, or lower context or tensor.",
        )
    check_length(config, plan.length)
    if plan.rows % plan.mesh.row_multiple:
        raise ConfigError(
            "the mesh cannot split the rows",
            got=plan.rows,
            limit=f"a multiple of data x fsdp x expert = {plan.mesh.row_multiple}",
            remedy="Change --rows or --mesh.",
        )
