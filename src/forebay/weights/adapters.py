"""Versions that are adapters only: the model that they belong to is published once, beside them.

A reader adds what they add to the weights, and hands out whole tensors: whoever asks for a version need not
know how it was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.errors import WeightsError
from forebay.weights.shard import Tensors

_PREFIX: Final = "base_model.model."
_A, _B, _WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"


class AdapterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a version of adapters says of itself.

    Args:
        base: `digest_of` the tensors that they belong to.
        scale: What `B A` is multiplied by.
    """

    base: str
    scale: float


def merge(
    base: Mapping[str, npt.NDArray[Any]], adapters: Mapping[str, npt.NDArray[Any]], scale: float
) -> Tensors:
    """Return the weights that compute what a model computes with its adapters: `W + scale B A`.

    Args:
        base: By Hugging Face name.
        adapters: By PEFT's name, A [rank, inputs] and B [outputs, rank].
        scale: What `B A` is multiplied by.

    Returns:
        By Hugging Face name: float32 where there is an adapter; all others as they are, not copied.

    Raises:
        WeightsError: An adapter has no weight to add to, does not fit it, or is not whole.
    """
    merged = dict(base)
    for stem in dict.fromkeys(name.removesuffix(_A).removesuffix(_B) for name in adapters):
        target = stem.removeprefix(_PREFIX) + _WEIGHT
        a, b, weight = adapters.get(stem + _A), adapters.get(stem + _B), base.get(target)
        if a is None or b is None or weight is None or not _fits(weight, b, a):
            shapes = [list(part.shape) for part in (b, a) if part is not None]
            raise WeightsError(
                f"adapter {stem} does not fit the published model",
                got=" x ".join(map(str, shapes)) or "neither A nor B",
                limit=None if weight is None else list(weight.shape),
            )
        added = np.matmul(b.astype(np.float32), a.astype(np.float32))
        merged[target] = np.float32(scale) * added + weight.astype(np.float32)
    return merged


def _fits(weight: npt.NDArray[Any], b: npt.NDArray[Any], a: npt.NDArray[Any]) -> bool:
    are_matrices = a.ndim == b.ndim == 2
    return are_matrices and weight.shape == (b.shape[0], a.shape[1]) and b.shape[1] == a.shape[0]
