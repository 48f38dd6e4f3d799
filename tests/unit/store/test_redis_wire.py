"""Commands arrive whole and in order, however the connection takes them."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from forebay.store.redis.wire import pack, send

FRAME = bytes(range(256)) * 1024
COMMANDS = [
    ("SET", "name", b"short", "EX", 5),
    *[("SET", f"frame{i}", FRAME[i:]) for i in range(8)],
    ("EVALSHA", "digest", 0, 1.5, FRAME[:4096], b""),
]


class OneByOne:
    """A connection that takes byte strings only, as one with TLS does."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None:
        self.writes += command


def receive(stream: socket.socket, num_bytes: int) -> bytes:
    """Read little by little, so that the other side must go on in the middle of its parts."""
    received = bytearray()
    while len(received) < num_bytes:
        received += stream.recv(1000)
    return bytes(received)


def test_what_a_socket_takes_in_parts_arrives_whole() -> None:
    wanted = b"".join(pack(COMMANDS))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        mine.settimeout(30.0)
        thread = threading.Thread(target=send, args=(SimpleNamespace(_sock=mine), COMMANDS))
        thread.start()
        assert receive(theirs, len(wanted)) == wanted
        thread.join()


def test_more_parts_than_one_call_takes_arrive_whole() -> None:
    commands = [("SET", str(i), bytes(4096)) for i in range(1100)]
    wanted = b"".join(pack(commands))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.settimeout(30.0)
        thread = threading.Thread(target=send, args=(SimpleNamespace(_sock=mine), commands))
        thread.start()
        assert receive(theirs, len(wanted)) == wanted
        thread.join()


def test_a_connection_without_a_plain_socket_gets_few_large_writes() -> None:
    connection = OneByOne()
    send(connection, COMMANDS)
    assert b"".join(connection.writes) == b"".join(pack(COMMANDS))
    assert len(connection.writes) == 3
    assert max(map(len, connection.writes)) <= 1 << 20


def test_a_peer_that_is_gone_is_an_error_of_the_system() -> None:
    mine, theirs = socket.socketpair()
    theirs.close()
    with mine, pytest.raises(OSError, match="Broken pipe"):
        send(SimpleNamespace(_sock=mine), COMMANDS)
