"""Frames of every past format still decode, and the present format does not drift.

The frames in `wire/` were written by `write` below, which knows the format's page and nothing of the encoder.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash

from forebay import wire
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, StepRecord, VersionSpan

FRAMES = {version: Path(__file__).parent / "wire" / f"v{version}.frame" for version in (1, 2)}

HEADER = [
    "g7.m1.a0", "run-1", 2, "g7", 4, 1, 0, "add-17", "calculator",
    [[None, "stop", 0.25, 1.5, 2.0], [1.0, "length", 0.0, 0.5, 0.0]],
    0.75, False, True, "truncated", 1700000000.5, 1700000012.25, 0.125, {"tool_calls": 3.0},
    "tok-9f", "model-1a",
    [
        [6, 3, [[2, 4, 0], [5, 6, 1]], [[2, [1, 9], [1, 8]], [1, [2, 9], [1, 9]]],
         {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "logprob_kind": "processed"}],
        [2, 0, [], [], {"temperature": 1.0, "top_p": 0.5, "top_k": 40, "logprob_kind": "raw"}],
    ],
]  # fmt: skip
HEADERS = {1: HEADER, 2: [*HEADER, 1.25]}  # format 2 says how long the reset took
ARRAYS = [
    np.array([5, 9, 30, 2, 17, 151935], "<i4"),
    np.array([-0.5, -0.25, -8.0], "<f4"),
    np.array([0, 2147483647], "<i4"),
    np.array([], "<f4"),
]


def write(version: int) -> bytes:
    """Write the frame by the format's description."""
    header = json.dumps(HEADERS[version], separators=(",", ":")).encode()
    body = header.ljust(len(header) + -(32 + len(header)) % 64, b"\0")
    for array in ARRAYS:
        body += array.tobytes().ljust(-(-array.nbytes // 64) * 64, b"\0")
    checksum = xxhash.xxh3_64(body).intdigest()
    return struct.pack("<4sHHIIQQ", b"FBAY", version, 0, len(header), 0, 32 + len(body), checksum) + body


@pytest.mark.parametrize("version", FRAMES)
def test_the_committed_frame_is_what_the_format_says(version) -> None:
    assert FRAMES[version].read_bytes() == write(version)


@pytest.mark.parametrize(("version", "reset_s"), [(1, None), (2, 1.25)])
def test_every_version_decodes(version, reset_s) -> None:
    trajectory = wire.decode(FRAMES[version].read_bytes())
    assert trajectory.reset_s == reset_s
    assert trajectory.trajectory_id == "g7.m1.a0"
    assert (trajectory.incarnation, trajectory.group_size, trajectory.member) == (2, 4, 1)
    assert (trajectory.run_id, trajectory.group_id, trajectory.task_id) == ("run-1", "g7", "add-17")
    assert trajectory.steps == (
        StepRecord(None, "stop", 0.25, 1.5, 2.0),
        StepRecord(1.0, "length", 0.0, 0.5, 0.0),
    )
    assert (trajectory.reward, trajectory.terminated, trajectory.truncated) == (0.75, False, True)
    assert (trajectory.started_s, trajectory.finished_s, trajectory.admission_s) == (
        1700000000.5,
        1700000012.25,
        0.125,
    )
    assert trajectory.metrics == {"tool_calls": 3.0}
    assert (trajectory.tokenizer, trajectory.model) == ("tok-9f", "model-1a")
    first, second = trajectory.sequences
    assert first.tokens.tolist() == [5, 9, 30, 2, 17, 151935]
    assert first.behavior_logprobs.tolist() == [-0.5, -0.25, -8.0]
    assert first.action_spans == (ActionSpan(2, 4, 0), ActionSpan(5, 6, 1))
    assert first.version_spans == (
        VersionSpan(2, PolicyVersion(1, 9), PolicyVersion(1, 8)),
        VersionSpan(1, PolicyVersion(2, 9), PolicyVersion(1, 9)),
    )
    assert first.sampling == Sampling(temperature=0.5)
    assert second.tokens.tolist() == [0, 2147483647]
    assert second.sampling == Sampling(top_p=0.5, top_k=40, logprob_kind="raw")


def test_the_encoder_writes_version_2_and_rewrites_version_1_with_nothing_lost() -> None:
    assert wire.encode(wire.decode(FRAMES[2].read_bytes())) == FRAMES[2].read_bytes()
    rewritten = wire.encode(wire.decode(FRAMES[1].read_bytes()))
    (header_bytes,) = struct.unpack_from("<I", rewritten, 8)
    assert json.loads(rewritten[32 : 32 + header_bytes]) == [*HEADER, None]
