"""A person in the place of the model: a generator that reads its answers from a terminal or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from forebay.chat import Chat
from forebay.errors import GenerationError
from forebay.generation.protocol import Completion, GenerationRequest, GeneratorInfo
from forebay.trajectory import PolicyVersion, VersionSpan

_ORIGIN: Final = PolicyVersion(0, 0)
_READ_BYTES: Final = 1 << 16
_CONTINUES: Final = "\\"


class PersonLeftError(GenerationError):
    """The person has ended the input."""


class Lines:
    """Lines of a file descriptor for an event loop; a line that ends with a backslash goes on in the next.

    A thread reads, and may be left waiting: neither a terminal nor a pipe can be waited for in every kind of
    loop, and a regular file in none.

    Args:
        descriptor: What is read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._ended = False
        threading.Thread(target=self._read, name="lines", daemon=True).start()

    async def next(self) -> str | None:
        """Return the next line without its end; None at the end of the input."""
        parts: list[str] = []
        while not self._ended:
            line = await self._lines.get()
            if line is None:
                self._ended = True
                break
            if not line.endswith(_CONTINUES):
                return "\n".join([*parts, line])
            parts.append(line.removesuffix(_CONTINUES))
        return "\n".join(parts) if parts else None

    def _read(self) -> None:
        rest = b""
        # Not through sys.stdin: its lock, held by a waiting thread, would abort the interpreter at its end.
        while read := self._more():
            *lines, rest = (rest + read).split(b"\n")
            self._put(*(line.decode(errors="replace").removesuffix("\r") for line in lines))
        self._put(*([rest.decode(errors="replace")] if rest else []), None)

    def _more(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except OSError:  # the terminal hung up, or nobody reads any more and the descriptor is closed
            return b""

    def _put(self, *lines: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for a line
            for line in lines:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class PersonGenerator:
    """The `Generator` protocol, answered by a person; their tokens are certain, and none is ever trained.

    Args:
        chat: Turns what they say into tokens.
        context: Most tokens of prompt and answer together.
        ask: Returns what they say; None when they have left.
    """

    def __init__(self, chat: Chat, context: int, ask: Callable[[], Awaitable[str | None]]) -> None:
        self._chat = chat
        self._context = context
        self._ask = ask

    async def generate(self, request: GenerationRequest) -> Completion:
        """Ask the person; an answer longer than `max_tokens` is cut, as the model's would be.

        Raises:
            PersonLeftError: They have left.
        """
        started_s = time.monotonic()
        text = await self._ask()
        if text is None:
            raise PersonLeftError("the player has left")
        said = np.append(self._chat.encode(text), np.int32(self._chat.stop_tokens[0])).astype(np.int32)
        tokens = said[: request.max_tokens]
        return Completion(
            tokens=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            version_spans=(VersionSpan(len(tokens), _ORIGIN, _ORIGIN),),
            finish="stop" if len(tokens) == len(said) else "length",
            generate_s=time.monotonic() - started_s,
        )

    async def abort(self, request_id: str) -> None:
        """Leave the person alone: a line that comes later answers the next question."""

    async def release(self, episode_id: str) -> None:
        """Hold nothing."""

    async def info(self) -> GeneratorInfo:
        """Return the limits that the person shares with the model."""
        return GeneratorInfo(
            version=_ORIGIN, context=self._context, vocabulary=self._chat.vocabulary, model="person"
        )

    async def close(self) -> None:
        """Hold nothing."""
