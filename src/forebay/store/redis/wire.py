"""Commands as the server reads them (RESP): a batch is few large writes, which wake the server once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Argument = str | int | float | bytes

# A longer argument is sent by itself: copying it would cost more than another write.
_LONG_BYTES: Final = 1 << 20


def pack(commands: Iterable[Sequence[Argument]]) -> list[bytes]:
    r"""Return commands as a few byte strings.

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
                chunks += (b"".join(parts), b"$%d\r\n" % len(raw), raw)
                parts = [b"\r\n"]
    chunks.append(b"".join(parts))
    return chunks
