from __future__ import annotations

import socket
import threading

import ml_dtypes
import numpy as np
import pytest

from forebay.errors import WireError
from forebay.learner.gang.frames import Frame, receive_frame, send_frame

ARRAYS = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
    np.zeros((0, 4), np.int32),
    np.array(2.5, ml_dtypes.bfloat16),
    np.arange(12).reshape(3, 4).T,  # not in C order
)


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def sent(pair, *frames: Frame) -> None:
    def send() -> None:
        for frame in frames:
            send_frame(pair[0], frame)
        pair[0].shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()


def test_a_frame_comes_back_with_every_bit_and_the_end_is_none(pair) -> None:
    sent(pair, Frame("batch", b'{"a": 1}', ARRAYS), Frame("beat"))
    got = receive_frame(pair[1])
    assert got is not None
    assert (got.topic, got.body) == ("batch", b'{"a": 1}')
    for array, expected in zip(got.arrays, ARRAYS, strict=True):
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes()
    assert receive_frame(pair[1]) == Frame("beat")
    assert receive_frame(pair[1]) is None


def raw_of(frame: Frame) -> bytearray:
    one, other = socket.socketpair()
    with one, other:
        send_frame(one, frame)
        one.shutdown(socket.SHUT_WR)
        return bytearray(b"".join(iter(lambda: other.recv(1 << 16), b"")))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: raw.__setitem__(0, 0), "prefix"),
        (lambda raw: raw.__setitem__(slice(4, 8), b"\xff\xff\xff\xff"), "prefix"),
        (lambda raw: raw.__setitem__(8, ord("x")), "header"),
        (lambda raw: raw.__setitem__(-1, raw[-1] ^ 1), "checksum"),
    ],
)
def test_damaged_frames_are_refused_by_reason(pair, damage, reason) -> None:
    raw = raw_of(Frame("batch", b"{}", ARRAYS[:1]))
    damage(raw)
    pair[0].sendall(raw)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(WireError) as caught:
        receive_frame(pair[1])
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("object", [1], "array"),
        ("float32", [-1], "array"),
        ("float32", [1 << 60], "array_size"),
        ("float32", [0, 1 << 62], "array_size"),  # no byte of it, and yet no array
    ],
)
def test_c75_a_header_that_asks_for_objects_or_too_much_memory_allocates_nothing(
    pair, dtype, shape, reason
) -> None:
    raw = raw_of(Frame("batch", b"{}", ARRAYS[:1]))
    asked = f'["{dtype}",{shape}]'.encode().replace(b" ", b"")
    header = bytes(raw[8:-24]).replace(b'["float32",[2,3]]', asked)
    pair[0].sendall(raw[:4] + len(header).to_bytes(4, "little") + header)
    with pytest.raises(WireError) as caught:
        receive_frame(pair[1])
    assert caught.value.reason == reason


def test_a_frame_that_is_cut_is_an_error_and_not_an_end(pair) -> None:
    pair[0].sendall(raw_of(Frame("batch", b"{}", ARRAYS[:1]))[:-1])
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        receive_frame(pair[1])


def test_types_that_frames_do_not_carry_are_refused_at_the_sender(pair) -> None:
    with pytest.raises(WireError, match="do not carry this type"):
        send_frame(pair[0], Frame("batch", b"", (np.array([object()]),)))
