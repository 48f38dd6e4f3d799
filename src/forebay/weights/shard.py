"""Safetensors files, written without a copy and read in one pass.

The library's own writer copies every tensor twice and its NumPy reader has no bfloat16; a learner that
publishes between two steps can afford neither. The format is a little-endian u64 header length, a JSON
header, and the tensors' bytes.

References:
    https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import WeightsError

Tensors = dict[str, npt.NDArray[Any]]

MAX_HEADER_BYTES = 64 * 2**20
_METADATA_KEY = "__metadata__"
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U32": np.dtype(np.uint32),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def digest_of(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the xxh3-128 of names, types, shapes and bytes, hexadecimal.

    Two sets of weights have the same digest if and only if they are bit-identical, whatever version they are
    published as and however they are split over files.

    Args:
        tensors: By Hugging Face name.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{dtype_name(name, tensor)}\0{list(tensor.shape)}\0".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def dtype_name(name: str, tensor: npt.NDArray[Any]) -> str:
    """Return the safetensors name of a tensor's type.

    Raises:
        WeightsError: The format has no such type.
    """
    try:
        return _DTYPE_NAMES[tensor.dtype]
    except KeyError:
        raise WeightsError(
            f"tensor {name} cannot be published", got=tensor.dtype, limit=", ".join(_DTYPES)
        ) from None


def encode(tensors: Mapping[str, npt.NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, piece by piece; the tensors are not copied.

    Args:
        tensors: By Hugging Face name; any shape.
    """
    # Wide types first, then by name: every tensor stays aligned, and the caller's order does not matter.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    entries: dict[str, Any] = {_METADATA_KEY: {"format": "pt"}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = _Entry(dtype_name(name, tensor), tensor.shape, (offset, end))
        offset = end
    header = msgspec.json.encode(entries)
    header += b" " * (-(len(header) + 8) % 64)
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        yield bytes_of(tensors[name])


class TensorPlace(NamedTuple):
    """Where a tensor lies in its file.

    Attributes:
        dtype: Its type.
        shape: Its shape.
        start: Its first byte, from the start of the file.
        stop: Behind its last byte.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return its bytes as the tensor."""
        return data.view(self.dtype).reshape(self.shape)


def read_places(
    read: Callable[[int, int], npt.NDArray[np.uint8]], num_bytes: int, source: str
) -> dict[str, TensorPlace]:
    """Return where the tensors of a safetensors file lie in it, from its header alone.

    Args:
        read: Returns the bytes from a start to a stop, [N] uint8.
        num_bytes: Size of the file.
        source: Name of the file, for the error.

    Raises:
        WeightsError: The bytes are not a safetensors file.
    """
    header_bytes = int.from_bytes(read(0, min(8, num_bytes)).tobytes(), "little")
    if num_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, num_bytes - 8):
        raise WeightsError(
            f"{source} is not a safetensors file", got=f"{num_bytes} bytes, header of {header_bytes}"
        )
    body = 8 + header_bytes
    try:
        raw = msgspec.json.decode(read(8, body).tobytes(), type=dict[str, msgspec.Raw])
        raw.pop(_METADATA_KEY, None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsError(f"{source} has a damaged safetensors header: {error}") from error
    return {name: _place(entry, name, body, num_bytes, source) for name, entry in entries.items()}


def decode(data: npt.NDArray[np.uint8], source: str) -> Tensors:
    """Return the tensors of a safetensors file as read-only views of `data`.

    Args:
        data: [N] uint8, the whole file.
        source: Name of the file, for the error.

    Raises:
        WeightsError: The bytes are not a safetensors file.
    """
    places = read_places(lambda start, stop: data[start:stop], len(data), source)
    body = data[:]
    body.flags.writeable = False
    return {name: place.view(body[place.start : place.stop]) for name, place in places.items()}


def bytes_of(tensor: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of a tensor in C order; a view where it lies like that."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def _place(entry: _Entry, name: str, body: int, num_bytes: int, source: str) -> TensorPlace:
    start, stop = entry.data_offsets
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None or not 0 <= start <= stop <= num_bytes - body or min(entry.shape, default=0) < 0:
        raise WeightsError(
            f"{source}: tensor {name} has a bad type or place", got=entry, limit=num_bytes - body
        )
    if math.prod(entry.shape) * dtype.itemsize != stop - start:
        raise WeightsError(
            f"{source}: tensor {name} has the wrong size",
            got=f"{stop - start} bytes",
            limit=f"{entry.dtype}{list(entry.shape)}",
        )
    return TensorPlace(dtype, entry.shape, body + start, body + stop)
