"""Commands as the server reads them (RESP): a batch is one large write, which wakes the server once."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

Argument = str | int | float | bytes

# A longer argument stays where it is; copying a shorter one costs less than one more part of a write.
_LONG_BYTES: Final = 4096
# Parts of one write to a connection that takes them one by one only.
_JOINED_BYTES: Final = 1 << 20
# The system takes 1024 parts in one call.
_MAX_PARTS: Final = 1000


class Sender(Protocol):
    """What sending needs of redis-py's connections."""

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None:
        """Send bytes."""
        ...


def send(connection: Sender, commands: Iterable[Sequence[Argument]]) -> None:
    """Send commands together.

    A plain socket gathers the parts by itself, so that no frame is copied on its way to the system.

    Args:
        connection: One of redis-py's, open.
        commands: What to send.

    Raises:
        OSError: The connection broke, or took too long.
    """
    parts = pack(commands)
    # The public way joins the parts or sends them one by one.
    stream = getattr(connection, "_sock", None)
    if isinstance(stream, socket.socket) and not isinstance(stream, ssl.SSLSocket):
        _gather(stream, parts)
    else:
        connection.send_packed_command(_joined(parts), check_health=False)


def pack(commands: Iterable[Sequence[Argument]]) -> list[bytes]:
    r"""Return commands as byte strings that follow one another.

    Example:
        >>> pack([("SET", "key", b"value", "EX", 5)])
        [b'*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n$2\r\nEX\r\n$1\r\n5\r\n']
    """
    chunks: list[bytes] = []
    parts: list[bytes] = []
    for words in commands:
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            # repr of a float loses nothing.
            raw = (
                word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%r" % word
            )
            if len(raw) < _LONG_BYTES:
                parts += (b"$%d\r\n" % len(raw), raw, b"\r\n")
            else:
                parts.append(b"$%d\r\n" % len(raw))
                chunks += (b"".join(parts), raw)
                parts = [b"\r\n"]
    chunks.append(b"".join(parts))
    return chunks


def _gather(stream: socket.socket, parts: list[bytes]) -> None:
    left: list[memoryview] = [memoryview(part) for part in parts]
    first = 0
    while first < len(left):
        sent = stream.sendmsg(left[first : first + _MAX_PARTS])
        while first < len(left) and sent >= len(left[first]):
            sent -= len(left[first])
            first += 1
        if sent:
            left[first] = left[first][sent:]


def _joined(parts: list[bytes]) -> list[bytes]:
    """Return parts, those joined that are not too long to be copied."""
    chunks: list[bytes] = []
    short: list[bytes] = []
    num_bytes = 0
    for part in parts:
        if num_bytes + len(part) > _JOINED_BYTES:
            chunks.append(b"".join(short))
            short, num_bytes = [], 0
        short.append(part)
        num_bytes += len(part)
    chunks.append(b"".join(short))
    return [chunk for chunk in chunks if chunk]
