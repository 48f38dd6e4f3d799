"""The wire frame of a trajectory: a checked prefix, a small typed header, and raw aligned arrays.

Layout, little-endian::

    prefix   32 bytes  magic "FBAY" | u16 format | u16 flags | u32 header bytes | u32 zero |
                       u64 frame bytes | u64 xxh3
    header   JSON      the trajectory without its arrays, and their lengths; at most 64 KiB
    arrays   raw       per sequence: tokens int32, behavior_logprobs float32; each starts at a multiple of 64

The checksum covers everything after the prefix. The header is JSON because a length-prefixed encoding lets a
few hostile bytes claim a huge array; here no allocation is larger than the bytes received, beyond the objects
of a header of at most 64 KiB. Masks and versions travel as spans. Every check comes before the allocation it
guards.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.errors import RecordError, WireError
from forebay.trajectory import (
    ActionSpan,
    Count,
    Finish,
    Sampling,
    Sequence,
    StepRecord,
    Trajectory,
    VersionSpan,
)

FORMAT_VERSION: Final = 2
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_FRAME_BYTES: Final = 1 << 30
_MAGIC: Final = b"FBAY"
_PREFIX: Final = struct.Struct("<4sHHIIQQ")
_ALIGN: Final = 64
_ZEROS: Final = tuple(bytes(length) for length in range(_ALIGN))
_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")


class _SequenceHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    num_tokens: Count
    num_logprobs: Count
    action_spans: tuple[ActionSpan, ...]
    version_spans: tuple[VersionSpan, ...]
    sampling: Sampling


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    trajectory_id: str
    run_id: str
    incarnation: Count
    group_id: str
    group_size: Count
    member: Count
    attempt: Count
    task_id: str
    environment: str
    steps: tuple[StepRecord, ...]
    reward: float | None
    terminated: bool
    truncated: bool
    finish: Finish
    started_s: float
    finished_s: float
    admission_s: float
    metrics: dict[str, float]
    tokenizer: str
    model: str
    sequences: tuple[_SequenceHeader, ...]
    reset_s: float | None = None  # since format 2


_SCALARS: Final = tuple(name for name in _Header.__struct_fields__ if name != "sequences")
_scalars_of = operator.attrgetter(*_SCALARS)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Header)


def encode(trajectory: Trajectory) -> bytes:
    """Encode a trajectory as one frame.

    Args:
        trajectory: A valid trajectory.

    Returns:
        The frame; its length is a multiple of 64.

    Raises:
        WireError: `header_too_large` if the header would exceed 64 KiB (thousands of steps or spans),
            `bad_value` if a field has no JSON form (a NumPy scalar, a lone surrogate).
    """
    header = _encode_header(trajectory)
    frame_bytes = _PREFIX.size + len(header)
    padding = -frame_bytes % _ALIGN
    frame_bytes += padding
    parts: list[bytes | memoryview] = [header, _ZEROS[padding]]
    for sequence in trajectory.sequences:
        for array, dtype in ((sequence.tokens, _INT32), (sequence.behavior_logprobs, _FLOAT32)):
            # Contiguous and little-endian already, nearly always: then nothing is copied before the join.
            num_bytes = dtype.itemsize * len(array)
            padding = -num_bytes % _ALIGN
            parts += (np.ascontiguousarray(array, dtype).data, _ZEROS[padding])
            frame_bytes += num_bytes + padding
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, len(header), 0, frame_bytes, checksum.intdigest())
    return b"".join((prefix, *parts))


def decode(frame: bytes | memoryview, *, max_bytes: int = MAX_FRAME_BYTES) -> Trajectory:
    """Decode one frame; the arrays are read-only views of it.

    Args:
        frame: Exactly one frame. It must not change while the trajectory lives.
        max_bytes: Largest frame accepted.

    Returns:
        The trajectory that was encoded.

    Raises:
        WireError: The bytes are not a frame; `reason` is one of `too_large`, `truncated`, `bad_magic`,
            `bad_version`, `bad_length`, `bad_checksum`, `bad_header`, or that of the record that refused.
    """
    view = memoryview(frame)
    header_bytes = _check_prefix(view, max_bytes)
    start = _PREFIX.size + header_bytes
    try:
        header = _decoder.decode(view[_PREFIX.size : start])
        sequences = _read_sequences(view, start, header.sequences)
        return Trajectory(sequences=sequences, **dict(zip(_SCALARS, _scalars_of(header), strict=True)))
    except RecordError as error:
        raise WireError(error.reason, error.what, got=error.got, limit=error.limit) from error
    # msgspec raises UnicodeDecodeError for bytes that are not UTF-8 and RecursionError for deep nesting.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise WireError("bad_header", f"frame header does not parse: {error}") from error


def _check_prefix(view: memoryview, max_bytes: int) -> int:
    if len(view) > max_bytes:
        raise WireError("too_large", "frame too large", got=len(view), limit=max_bytes)
    if len(view) < _PREFIX.size:
        raise WireError("truncated", "frame shorter than its prefix", got=len(view), limit=_PREFIX.size)
    magic, version, flags, header_bytes, zero, frame_bytes, checksum = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise WireError("bad_magic", "not a forebay frame", got=repr(bytes(magic)))
    if not 1 <= version <= FORMAT_VERSION or flags or zero:
        raise WireError("bad_version", "frame format not known", got=version, limit=FORMAT_VERSION)
    if frame_bytes != len(view):
        reason = "truncated" if frame_bytes > len(view) else "bad_length"
        raise WireError(reason, "frame length differs from its prefix", got=len(view), limit=frame_bytes)
    if header_bytes > MAX_HEADER_BYTES or _PREFIX.size + header_bytes > len(view):
        raise WireError(
            "bad_length", "frame header length impossible", got=header_bytes, limit=MAX_HEADER_BYTES
        )
    if xxhash.xxh3_64_intdigest(view[_PREFIX.size :]) != checksum:
        raise WireError("bad_checksum", "frame checksum does not match")
    return int(header_bytes)


def _encode_header(trajectory: Trajectory) -> bytes:
    sequences = tuple(
        _SequenceHeader(
            len(sequence.tokens),
            len(sequence.behavior_logprobs),
            sequence.action_spans,
            sequence.version_spans,
            sequence.sampling,
        )
        for sequence in trajectory.sequences
    )
    try:
        *scalars, reset_s = _scalars_of(trajectory)
        header = _encoder.encode(_Header(*(*scalars, sequences, reset_s)))
    except (TypeError, UnicodeEncodeError) as error:
        raise WireError("bad_value", f"trajectory has a field without a JSON form: {error}") from error
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(
            "header_too_large", "trajectory header too large", got=len(header), limit=MAX_HEADER_BYTES
        )
    return header


def _read_sequences(
    view: memoryview, start: int, headers: tuple[_SequenceHeader, ...]
) -> tuple[Sequence, ...]:
    offset = start + -start % _ALIGN
    sequences = []
    for header in headers:
        tokens, offset = _read_array(view, offset, header.num_tokens, _INT32)
        logprobs, offset = _read_array(view, offset, header.num_logprobs, _FLOAT32)
        sequences.append(
            Sequence(
                tokens=tokens,
                action_spans=header.action_spans,
                behavior_logprobs=logprobs,
                version_spans=header.version_spans,
                sampling=header.sampling,
            )
        )
    if offset != len(view):
        raise WireError("bad_length", "frame has bytes that no array owns", got=len(view), limit=offset)
    return tuple(sequences)


def _read_array(
    view: memoryview, offset: int, count: int, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], int]:
    stop = offset + dtype.itemsize * count
    if stop > len(view):
        room = max(len(view) - offset, 0) // dtype.itemsize
        raise WireError("bad_length", "frame array runs past its end", got=count, limit=room)
    # A count of 0 would be refused at the very end of a frame.
    array = np.frombuffer(view, dtype, count, offset) if count else np.empty(0, dtype)
    return array, stop + -stop % _ALIGN
