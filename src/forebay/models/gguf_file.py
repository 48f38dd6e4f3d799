"""GGUF files: metadata and the table of tensors, read from an untrusted header; tensors as float32 on demand.

Only quantized tensors need the `gguf` package, for its dequantization. The header is read here: every size is
checked against the file before anything is allocated, and 100,000 strings take a tenth of a second.

References:
    The GGUF format, versions 2 and 3: ggml, `docs/gguf.md`.
"""

from __future__ import annotations

import importlib
import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from forebay.errors import ConfigError, ModelError

SUFFIX: Final = ".gguf"
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_F32, _F16, _BF16 = 0, 1, 30
_PLAIN: Final[dict[int, np.dtype[Any]]] = {
    _F32: np.dtype("<f4"),
    _F16: np.dtype("<f2"),
    _BF16: np.dtype("<u2"),
}
_DOWNLOAD_AGAIN: Final = "Download the file again."


class GgufTensor(NamedTuple):
    """One row of the table of tensors.

    Args:
        shape: Row-major, as NumPy has it; the file has the axes the other way round.
        type_id: How the numbers are stored; ggml's number of the type.
        offset_bytes: From the start of the file.
    """

    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What the header of a GGUF file says.

    Args:
        path: The file.
        metadata: Values by key: int, float, bool, str, or a list of one of them.
        tensors: Tensors by their GGUF name, in file order.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def is_gguf(path: Path) -> bool:
    """Return whether a path names a file rather than a model directory; it may be missing or no GGUF file."""
    return path.is_file() or (path.suffix == SUFFIX and not path.is_dir())


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file; no tensor is read.

    Raises:
        ModelError: The file is missing, is no GGUF file, is cut short or contradicts itself.
    """
    if not path.is_file():
        raise ModelError(f"no GGUF file {path}", remedy="Check model.path.")
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
        if start != _MAGIC:
            raise ModelError(
                f"{path} is not a GGUF file", got=f"it starts with {start!r}", limit=repr(_MAGIC)
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(path, data).read()


def check_gguf(file: GgufFile) -> None:
    """Check that every tensor can be read and lies within the file; no tensor is read.

    Raises:
        ModelError: A tensor has an unknown type, or the file is cut short.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    size_bytes = file.path.stat().st_size
    for name, tensor in file.tensors.items():
        end_bytes = tensor.offset_bytes + _stored(file, name)[0] * math.prod(tensor.shape[:-1])
        if end_bytes > size_bytes:
            raise ModelError(
                f"{file.path} is cut short: it ends within tensor {name}",
                got=f"{size_bytes} bytes",
                limit=f">= {end_bytes}",
                remedy=_DOWNLOAD_AGAIN,
            )


def read_tensors(file: GgufFile) -> dict[str, np.ndarray]:
    """Return every tensor by its GGUF name, float32, dequantized.

    Raises:
        ModelError: A tensor has an unknown type, or the file is cut short.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    check_gguf(file)
    data = np.memmap(file.path, mode="r")
    return {name: _read_tensor(file, name, data) for name in file.tensors}


def read_tensor(file: GgufFile, name: str) -> np.ndarray:
    """Return one tensor, float32, dequantized.

    Args:
        file: The header.
        name: Its GGUF name.

    Raises:
        ModelError: A tensor has an unknown type, or the file is cut short.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    check_gguf(file)
    return _read_tensor(file, name, np.memmap(file.path, mode="r"))


def _read_tensor(file: GgufFile, name: str, data: np.ndarray) -> np.ndarray:
    tensor = file.tensors[name]
    row_bytes, decode = _stored(file, name)
    num_bytes = row_bytes * math.prod(tensor.shape[:-1])
    raw = data[tensor.offset_bytes : tensor.offset_bytes + num_bytes]
    return np.asarray(decode(raw.reshape(*tensor.shape[:-1], row_bytes)), np.float32).reshape(tensor.shape)


def _stored(file: GgufFile, name: str) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """Return how many bytes a row of a tensor takes, and what turns rows of bytes into numbers."""
    tensor = file.tensors[name]
    width = tensor.shape[-1]
    if tensor.type_id in _PLAIN:
        dtype = _PLAIN[tensor.type_id]
        if tensor.type_id == _BF16:
            return 2 * width, lambda raw: (raw.view(dtype).astype(np.uint32) << 16).view(np.float32)
        return dtype.itemsize * width, lambda raw: raw.view(dtype)
    package = _gguf_package(file.path)
    try:
        kind = package.GGMLQuantizationType(tensor.type_id)
        block, block_bytes = package.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ModelError(
            f"tensor {name} of {file.path} has a type that the gguf package does not know",
            got=tensor.type_id,
            remedy="Install a newer gguf package, or use another quantization of the model.",
        ) from None
    if width % block:
        raise ModelError(
            f"tensor {name} of {file.path} has rows that are no multiple of a block of {kind.name}",
            got=width,
            limit=block,
            remedy=_DOWNLOAD_AGAIN,
        )
    return width // block * block_bytes, lambda raw: _dequantize(package, raw, kind, name)


def _dequantize(package: ModuleType, raw: np.ndarray, kind: Any, name: str) -> np.ndarray:
    try:
        values: np.ndarray = package.dequantize(raw, kind)
    except RuntimeError:  # its subclass for types that the package knows by name only
        raise ModelError(
            f"tensor {name} is stored as {kind.name}, which the gguf package cannot turn into numbers",
            remedy="Use another quantization of the model.",
        ) from None
    return values


def _gguf_package(path: Path) -> ModuleType:
    try:
        return importlib.import_module("gguf")
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path} is quantized, and the package that can dequantize it is not installed: gguf",
            remedy="Install the extra: pip install 'forebay[gguf]'.",
        ) from None


class _Header:
    """A cursor over the header of one file; every read is checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, len(_MAGIC)

    def read(self) -> GgufFile:
        version = self._scalar("<I")
        if version not in _VERSIONS:
            # A file of the other byte order shows up here, too.
            self._refuse(
                "has a GGUF version that is not supported", version, "little-endian version 2 or 3", None
            )
        num_tensors, num_values = self._count(24), self._count(13)
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            if key in metadata:
                self._refuse("has a key twice", key)
            metadata[key] = self._value(key, self._scalar("<I"))
        rows = [self._row() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            self._refuse("has an impossible general.alignment", alignment)
        start = -(-self._at // alignment) * alignment
        tensors = {name: row._replace(offset_bytes=start + row.offset_bytes) for name, row in rows}
        if len(tensors) != len(rows):
            self._refuse("has a tensor twice", f"{len(rows)} rows, {len(tensors)} names")
        return GgufFile(self._path, metadata, tensors)

    def _row(self) -> tuple[str, GgufTensor]:
        name = self._string()
        num_dimensions = self._scalar("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            self._refuse(f"has a tensor {name} of impossible rank", num_dimensions, _MAX_DIMENSIONS)
        shape = tuple(self._scalar("<Q") for _ in range(num_dimensions))[::-1]
        if min(shape) < 1 or math.prod(shape) >= 1 << 48:
            self._refuse(f"has a tensor {name} of impossible shape", list(shape))
        return name, GgufTensor(shape, self._scalar("<I"), self._scalar("<Q"))

    def _value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        self._refuse(f"has a value of unknown type: {key}", kind)

    def _array(self, key: str) -> list[Any]:
        kind = self._scalar("<I")
        if kind == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if kind not in _SCALARS:
            self._refuse(f"has an array of unknown type: {key}", kind)
        item = np.dtype(_SCALARS[kind])
        count = self._count(item.itemsize)
        values: list[Any] = np.frombuffer(self._bytes(count * item.itemsize), item).tolist()
        return values

    def _scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _count(self, item_bytes: int) -> int:
        """Read how many items follow, which take at least `item_bytes` each."""
        count: int = self._scalar("<Q")
        if count * item_bytes > len(self._data):
            self._cut_short(self._at + count * item_bytes)
        return count

    def _string(self) -> str:
        raw = self._bytes(self._count(1))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._refuse("has a text that is not UTF-8", repr(raw[:32]))

    def _bytes(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > len(self._data):
            self._cut_short(end)
        raw = self._data[self._at : end]
        self._at = end
        return raw

    def _cut_short(self, end: int) -> NoReturn:
        self._refuse("is cut short: it ends within its header", f"{len(self._data)} bytes", f">= {end}")

    def _refuse(
        self, what: str, got: object, limit: object = None, remedy: str | None = _DOWNLOAD_AGAIN
    ) -> NoReturn:
        raise ModelError(f"{self._path} {what}", got=got, limit=limit, remedy=remedy)
