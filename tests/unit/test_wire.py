from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import xxhash

from forebay import wire
from forebay.errors import WireError
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    Sequence,
    StepRecord,
    Trajectory,
    VersionSpan,
)

PREFIX = struct.Struct("<4sHHIIQQ")
V0 = PolicyVersion(0, 0)


def sequence(num_tokens: int = 5, num_actions: int = 3) -> Sequence:
    return Sequence(
        tokens=np.arange(num_tokens, dtype=np.int32),
        action_spans=(ActionSpan(num_tokens - num_actions, num_tokens, 0),) if num_actions else (),
        behavior_logprobs=-np.arange(num_actions, dtype=np.float32),
        version_spans=(VersionSpan(num_actions, V0, V0),) if num_actions else (),
        sampling=Sampling(temperature=0.7),
    )


def trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": "t", "run_id": "r", "incarnation": 0, "group_id": "g", "group_size": 1, "member": 0,
        "attempt": 0, "task_id": "k", "environment": "e", "sequences": (sequence(), sequence(2, 0)),
        "steps": (StepRecord(None, "stop", 0.0, 0.0, 0.0),), "reward": None, "terminated": True,
        "truncated": False, "finish": "terminated", "started_s": 1.0, "finished_s": 2.0,
    }  # fmt: skip
    return Trajectory(**(fields | changes))


def resealed(frame: bytes, **prefix: int | bytes) -> bytes:
    """Replace prefix fields, with a right checksum."""
    magic, version, flags, header_bytes, zero, frame_bytes, _ = PREFIX.unpack_from(frame)
    fields = {
        "magic": magic, "version": version, "flags": flags, "header_bytes": header_bytes, "zero": zero,
        "frame_bytes": frame_bytes, "checksum": xxhash.xxh3_64_intdigest(frame[PREFIX.size :]),
    }  # fmt: skip
    return PREFIX.pack(*(fields | prefix).values()) + frame[PREFIX.size :]


def with_header(frame: bytes, header: bytes) -> bytes:
    stop = PREFIX.size + PREFIX.unpack_from(frame)[3]
    arrays = frame[stop + -stop % 64 :]
    body = header + bytes(-(PREFIX.size + len(header)) % 64) + arrays
    frame = bytes(PREFIX.size) + body
    version = wire.FORMAT_VERSION
    return resealed(frame, magic=b"FBAY", version=version, header_bytes=len(header), frame_bytes=len(frame))


def header_of(frame: bytes) -> list[Any]:
    return json.loads(frame[PREFIX.size : PREFIX.size + PREFIX.unpack_from(frame)[3]])


def refusal(frame: bytes, **options: int) -> str:
    with pytest.raises(WireError) as caught:
        wire.decode(frame, **options)
    return caught.value.reason


FRAME = wire.encode(trajectory())


def test_arrays_are_aligned_read_only_views_of_the_frame() -> None:
    decoded = wire.decode(FRAME)
    base = np.frombuffer(FRAME, np.uint8)
    for array in (decoded.sequences[0].tokens, decoded.sequences[0].behavior_logprobs):
        assert np.shares_memory(array, base)
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        assert offset % 64 == 0
        assert not array.flags.writeable
    assert decoded.sequences[1].behavior_logprobs.tolist() == []


def test_a_view_of_arrays_in_steps_is_encoded_by_value() -> None:
    strided = sequence()
    reversed_tokens = Sequence(
        tokens=strided.tokens[::-1],
        action_spans=strided.action_spans,
        behavior_logprobs=strided.behavior_logprobs[::-1],
        version_spans=strided.version_spans,
        sampling=strided.sampling,
    )
    decoded = wire.decode(memoryview(wire.encode(trajectory(sequences=(reversed_tokens,)))))
    assert decoded.sequences[0].tokens.tolist() == [4, 3, 2, 1, 0]
    assert decoded.sequences[0].behavior_logprobs.tolist() == [-2.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("reason", "frame"),
    [
        ("truncated", FRAME[:31]),
        ("truncated", FRAME[:-64]),
        ("bad_length", FRAME + bytes(64)),
        ("bad_magic", resealed(FRAME, magic=b"PK\x03\x04")),
        ("bad_version", resealed(FRAME, version=0)),
        ("bad_version", resealed(FRAME, version=3)),
        ("bad_version", resealed(FRAME, flags=1)),
        ("bad_version", resealed(FRAME, zero=1)),
        ("bad_length", resealed(FRAME, header_bytes=len(FRAME))),
        ("bad_length", resealed(FRAME, header_bytes=64 * 1024 + 1)),
        ("bad_checksum", resealed(FRAME, checksum=0)),
        ("bad_header", resealed(FRAME, header_bytes=3)),
        ("bad_header", with_header(FRAME, b"\xff\xfe")),
        ("bad_header", with_header(FRAME, b'["\xff"]')),
        ("bad_header", with_header(FRAME, b"[" * 60_000)),
        ("bad_header", with_header(FRAME, json.dumps([*header_of(FRAME), 1]).encode())),
        ("bad_length", with_header(FRAME, json.dumps([*header_of(FRAME)[:-2], [], None]).encode())),
        ("bad_name", with_header(FRAME, json.dumps(["../t", *header_of(FRAME)[1:]]).encode())),
    ],
)
def test_every_refusal_has_its_name(reason: str, frame: bytes) -> None:
    assert refusal(frame) == reason


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("bad_length", [2**40, 3]),
        ("bad_length", [5, 2**53 - 1]),
        ("bad_header", [2**53, 3]),
        ("bad_header", [-1, 3]),
        ("empty_sequence", [0, 0, [], []]),
        ("bad_span", [4, 3]),
        ("logprob_mismatch", [5, 2]),
    ],
)
def test_lying_array_lengths_are_refused(reason: str, changes: list[Any]) -> None:
    header = header_of(FRAME)
    header[-2][0] = [*changes, *header[-2][0][len(changes) :]]
    assert refusal(with_header(FRAME, json.dumps(header).encode())) == reason


def test_a_frame_over_the_callers_limit_is_refused_unread() -> None:
    assert refusal(FRAME, max_bytes=len(FRAME) - 1) == "too_large"
    assert wire.decode(FRAME, max_bytes=len(FRAME)).trajectory_id == "t"


def test_a_header_over_its_limit_is_refused_at_encode() -> None:
    steps = (StepRecord(None, "stop", 0.0, 0.0, 0.0),) * 3000
    with pytest.raises(WireError) as caught:
        wire.encode(trajectory(steps=steps))
    assert caught.value.reason == "header_too_large"


@pytest.mark.parametrize("changes", [{"reward": np.float64(1.0)}, {"model": "\ud800"}])
def test_a_value_without_a_json_form_is_refused_at_encode(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        wire.encode(trajectory(**changes))
    assert caught.value.reason == "bad_value"


def test_masks_and_versions_travel_as_runs() -> None:
    long = Sequence(
        tokens=np.zeros(4096, np.int32),
        action_spans=(ActionSpan(96, 4096, 0),),
        behavior_logprobs=np.zeros(4000, np.float32),
        version_spans=(VersionSpan(4000, V0, V0),),
        sampling=Sampling(),
    )
    assert len(wire.encode(trajectory(sequences=(long,)))) < 4096 * 4 + 4000 * 4 + 640
