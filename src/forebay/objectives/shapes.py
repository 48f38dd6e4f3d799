"""The refusal of arrays that do not belong together, at trace time: it costs nothing when it runs."""

from __future__ import annotations

from jax import Array

from forebay.errors import RecordError


def same_shape(**arrays: Array) -> None:
    """Refuse arrays that are not all `[B, T]` of one and the same shape; broadcasting would hide the fault.

    Args:
        **arrays: The arrays by name.

    Raises:
        RecordError: If a rank is not 2 or two shapes differ.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise RecordError(
            "shape_mismatch", "per-token arrays must share one shape", got=listed, limit="[rows, tokens]"
        )
