"""Frames between the processes of a learner: a topic, a JSON body, and raw arrays; nothing else is decoded.

```
magic 4 bytes | header length u32 | header, JSON | bytes of the arrays, one after another
```
All numbers are little-endian. The header names type and shape of every array, and the checksum of their
bytes; types are those of an allow-list, and sizes are bounded before anything is allocated.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import WireError

MAX_HEADER_BYTES: Final = 16 * 2**20
MAX_ARRAY_BYTES: Final = 64 * 2**30
_MAGIC: Final = b"FBG1"
_PREFIX: Final = struct.Struct("<4sI")
_CHUNK_BYTES: Final = 4 * 2**20
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name)
    for name in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint32",
        "uint8",
        "bool",
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Frame(NamedTuple):
    """What one process tells another.

    Attributes:
        topic: What it is about; frames of a topic stay in order.
        body: JSON, or text that the topic knows how to read.
        arrays: What the body refers to.
    """

    topic: str
    body: bytes = b""
    arrays: tuple[npt.NDArray[Any], ...] = ()


class _ArrayHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    body: bytes
    arrays: tuple[_ArrayHeader, ...]
    checksum: str


def send_frame(connection: socket.socket, frame: Frame) -> None:
    """Write one frame; its arrays are not copied.

    Raises:
        WireError: An array has a type that frames do not carry.
        OSError: The connection is gone.
    """
    headers = tuple(_ArrayHeader(_dtype_name(array), array.shape) for array in frame.arrays)
    views = [_bytes_of(array) for array in frame.arrays]
    header = msgspec.json.encode(_Header(frame.topic, frame.body, headers, _checksum(views)))
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(
            "header_size", "the header of a frame is too large", got=len(header), limit=MAX_HEADER_BYTES
        )
    connection.sendall(_PREFIX.pack(_MAGIC, len(header)) + header)
    for view in views:
        connection.sendall(view)


def receive_frame(
    connection: socket.socket,
    heard: Callable[[], None] = lambda: None,
    *,
    max_header_bytes: int = MAX_HEADER_BYTES,
    max_array_bytes: int = MAX_ARRAY_BYTES,
) -> Frame | None:
    """Read one frame; None at the end of the stream between two frames.

    Args:
        connection: A blocking socket.
        heard: Called whenever bytes arrived, also within a long frame.
        max_header_bytes: Most bytes that the header, and the body in it, may have.
        max_array_bytes: Most bytes that the arrays of a frame may have together.

    Raises:
        WireError: The bytes are no frame, or it is larger than allowed.
        OSError: The connection is gone.
    """
    prefix = bytearray(_PREFIX.size)
    if not _fill(connection, memoryview(prefix), heard, may_end=True):
        return None
    magic, header_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or header_bytes > max_header_bytes:
        raise WireError(
            "prefix",
            "these bytes are no frame of a learner",
            got=f"{magic!r}, {header_bytes} bytes",
            limit=f"{_MAGIC!r}, {max_header_bytes} bytes",
        )
    raw = bytearray(header_bytes)
    _fill(connection, memoryview(raw), heard)
    try:
        header = msgspec.json.decode(raw, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError("header", f"the header of a frame is damaged: {error}") from error
    arrays = _empty_arrays(header.arrays, max_array_bytes)
    views = [_bytes_of(array) for array in arrays]
    for view in views:
        _fill(connection, view, heard)
    if _checksum(views) != header.checksum:
        raise WireError("checksum", f"the arrays of a frame of {header.topic} are damaged")
    return Frame(header.topic, header.body, arrays)


def _empty_arrays(headers: tuple[_ArrayHeader, ...], max_bytes: int) -> tuple[npt.NDArray[Any], ...]:
    total = 0
    for header in headers:
        if header.dtype not in _DTYPES or min(header.shape, default=0) < 0 or len(header.shape) > 8:
            raise WireError("array", "a frame has an array of a bad type or shape", got=header)
        # A length of 0 must not hide lengths that no array can have.
        total += math.prod(max(1, length) for length in header.shape) * _DTYPES[header.dtype].itemsize
    if total > max_bytes:
        raise WireError("array_size", "the arrays of a frame are too large", got=total, limit=max_bytes)
    return tuple(np.empty(header.shape, _DTYPES[header.dtype]) for header in headers)


def _fill(
    connection: socket.socket, into: memoryview, heard: Callable[[], None], *, may_end: bool = False
) -> bool:
    done = 0
    while done < len(into):
        count = connection.recv_into(into[done : done + _CHUNK_BYTES])
        if count == 0:
            if may_end and done == 0:
                return False
            raise ConnectionResetError("the connection was closed in the middle of a frame")
        done += count
        heard()
    return True


def _dtype_name(array: npt.NDArray[Any]) -> str:
    if array.dtype.name not in _DTYPES:
        raise WireError("dtype", "frames do not carry this type", got=array.dtype, limit=", ".join(_DTYPES))
    return array.dtype.name


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _checksum(views: list[memoryview]) -> str:
    digest = xxhash.xxh3_64()
    for view in views:
        digest.update(view)
    return digest.hexdigest()
