"""Any trajectory survives the wire; no bytes whatever crash the decoder or make it allocate much."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay import wire
from forebay.errors import WireError
from forebay.trajectory import Trajectory
from tests.properties.strategies import trajectories

PREFIX = struct.Struct("<4sHHIIQQ")
# Objects of the header, which has a limit of its own: the worst case is measured below.
MEMORY_PER_BYTE, MEMORY_BYTES = 16, 64 * 1024


def seal(body: bytes, header_bytes: int, frame_bytes: int | None = None) -> bytes:
    """Put a prefix with a right checksum before a body that may be wrong in any other way."""
    frame_bytes = PREFIX.size + len(body) if frame_bytes is None else frame_bytes
    return PREFIX.pack(b"FBAY", 1, 0, header_bytes, 0, frame_bytes, xxhash.xxh3_64_intdigest(body)) + body


def seal_header(header: bytes, arrays: bytes = b"") -> bytes:
    padding = bytes(-(PREFIX.size + len(header)) % 64)
    return seal(header + padding + arrays, len(header))


def split(frame: bytes) -> tuple[bytes, bytes]:
    """Return the header and the arrays of a valid frame."""
    header_bytes = PREFIX.unpack_from(frame)[3]
    stop = PREFIX.size + header_bytes
    return frame[PREFIX.size : stop], frame[stop + -stop % 64 :]


def decode_or_refuse(frame: bytes) -> Trajectory | None:
    """Decode within the memory bound; None if refused by name."""
    tracemalloc.start()
    try:
        trajectory = wire.decode(frame)
    except WireError as error:
        assert error.reason.isidentifier()
        assert len(str(error)) < 4096
        trajectory = None
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes <= MEMORY_PER_BYTE * len(frame) + MEMORY_BYTES
    return trajectory


def same(left: Trajectory, right: Trajectory) -> bool:
    names = [name for name in Trajectory.__struct_fields__ if name != "sequences"]
    return all(getattr(left, name) == getattr(right, name) for name in names) and all(
        np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.behavior_logprobs, b.behavior_logprobs)
        and (a.action_spans, a.version_spans, a.sampling) == (b.action_spans, b.version_spans, b.sampling)
        for a, b in zip(left.sequences, right.sequences, strict=True)
    )


@given(trajectories())
def test_round_trip(trajectory: Trajectory) -> None:
    frame = wire.encode(trajectory)
    assert len(frame) % 64 == 0
    decoded = wire.decode(frame)
    assert same(decoded, trajectory)
    assert wire.encode(decoded) == frame


@given(st.binary(max_size=300))
@example(b"")
@example(b"FBAY")
@example(b"\x80\x05cposix\nsystem\n(S'touch canary'\ntR.")
def test_c75_random_bytes_are_refused(data: bytes) -> None:
    assert decode_or_refuse(data) is None


@given(trajectories(), st.data())
def test_damaged_frames_are_refused(trajectory: Trajectory, data: st.DataObject) -> None:
    frame = bytearray(wire.encode(trajectory))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    assert decode_or_refuse(bytes(frame)) is None
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert decode_or_refuse(bytes(frame[:cut])) is None


@given(trajectories(), st.data())
def test_damage_under_a_right_checksum_is_refused_or_harmless(
    trajectory: Trajectory, data: st.DataObject
) -> None:
    frame = wire.encode(trajectory)
    header_bytes = PREFIX.unpack_from(frame)[3]
    body = bytearray(frame[PREFIX.size :])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    lying = data.draw(st.just(header_bytes) | st.integers(0, 2**32 - 1))
    decoded = decode_or_refuse(seal(bytes(body), lying))
    if decoded is not None:
        assert same(wire.decode(wire.encode(decoded)), decoded)


HOSTILE = st.one_of(
    st.integers(-(10**40), 10**40),
    st.sampled_from([-1, 0, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**4299, 1e308, -1e308, 0.5]),
    st.none() | st.booleans() | st.text(max_size=5),
    st.builds(list) | st.builds(dict) | st.builds(lambda: [[] for _ in range(50)]),
)


def paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the way to every leaf and branch of a JSON value."""
    children: list[Any] = (
        list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    )
    return [path, *(way for key in children for way in paths(node[key], (*path, key)))]


@given(trajectories(), st.data())
def test_lying_headers_are_refused_or_harmless(trajectory: Trajectory, data: st.DataObject) -> None:
    header, arrays = split(wire.encode(trajectory))
    tree = json.loads(header)
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(paths(tree)[1:]))
        node = tree
        for key in way[:-1]:
            node = node[key]
        if data.draw(st.booleans()) and isinstance(node, list):
            del node[way[-1]]
        else:
            node[way[-1]] = data.draw(HOSTILE)
    decoded = decode_or_refuse(seal_header(json.dumps(tree).encode(), arrays))
    if decoded is not None:
        assert same(wire.decode(wire.encode(decoded)), decoded)


@settings(max_examples=50)
@given(trajectories(), st.integers(0, 2**64 - 1))
def test_lying_frame_lengths_are_refused(trajectory: Trajectory, claimed: int) -> None:
    frame = wire.encode(trajectory)
    header_bytes = PREFIX.unpack_from(frame)[3]
    decoded = decode_or_refuse(seal(frame[PREFIX.size :], header_bytes, claimed))
    assert decoded is None or claimed == len(frame)


def _fields(**changes: str) -> bytes:
    """Write a header from JSON fragments, by the order of the format."""
    fields = {
        "trajectory_id": '"t"', "run_id": '"r"', "incarnation": "0", "group_id": '"g"', "group_size": "1",
        "member": "0", "attempt": "0", "task_id": '"k"', "environment": '"e"', "steps": "[]",
        "reward": "null", "terminated": "true", "truncated": "false", "finish": '"terminated"',
        "started_s": "0", "finished_s": "0", "admission_s": "0", "metrics": "{}", "tokenizer": '""',
        "model": '""', "sequences": "[]",
    }  # fmt: skip
    fields.update(changes)
    return ("[" + ",".join(fields.values()) + "]").encode()


def _repeat(item: str, room: int = 64_000) -> str:
    return "[" + ",".join([item] * (room // (len(item) + 1))) + "]"


SEQUENCE = "[1,0,[],[],{}]"
WORST: dict[str, Callable[[], bytes]] = {
    "sequences without arrays": lambda: _fields(sequences=_repeat(SEQUENCE)),
    "action spans": lambda: _fields(sequences=f"[[1,1,{_repeat('[0,1,0]')},[],{{}}]]"),
    "big numbers": lambda: _fields(sequences=f"[[1,1,{_repeat('[999,999,999]')},[],{{}}]]"),
    "version spans": lambda: _fields(sequences=f"[[1,1,[],{_repeat('[1,[0,0],[0,0]]')},{{}}]]"),
    "steps": lambda: _fields(steps=_repeat('[null,"",0,0,0]')),
    "metrics": lambda: _fields(metrics="{" + ",".join(f'"{i:04d}":1' for i in range(7_000)) + "}"),
    "nesting": lambda: b"[" * 60_000,
    "nested field": lambda: _fields(sequences="[" * 60_000),
    "digits": lambda: _fields(incarnation="9" * 60_000),
    "long text": lambda: _fields(model='"' + "é" * 30_000 + '"'),
}


@pytest.mark.parametrize("case", WORST)
def test_memory_of_the_worst_headers_is_bounded(case: str) -> None:
    header = WORST[case]()
    assert len(header) <= wire.MAX_HEADER_BYTES
    decode_or_refuse(seal_header(header))


def test_a_sequence_without_arrays_is_refused_before_the_rest_is_built() -> None:
    arrays = bytes(64)
    header = _fields(sequences=f"[{SEQUENCE},{SEQUENCE}]")
    with pytest.raises(WireError) as caught:
        wire.decode(seal_header(header, arrays))
    assert caught.value.reason == "bad_length"
