from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from forebay.chat import small_chat
from forebay.cli.person import Lines, PersonGenerator, PersonLeftError
from forebay.generation.protocol import GenerationRequest
from forebay.trajectory import Sampling

CHAT = small_chat()


def request(max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(
        request_id="r", prompt=np.zeros(4, np.int32), sampling=Sampling(), max_tokens=max_tokens
    )


def lines_of(*written: bytes) -> list[str | None]:
    """What comes out when a pipe is written to piece by piece, then closed."""

    async def main() -> list[str | None]:
        reader, writer = os.pipe()
        lines = Lines(reader)
        for piece in written:
            os.write(writer, piece)
            await asyncio.sleep(0.01)
        os.close(writer)
        found: list[str | None] = []
        while not found or found[-1] is not None:
            found.append(await lines.next())
        assert await lines.next() is None
        os.close(reader)
        return found

    return asyncio.run(main())


def test_lines_come_whole_whatever_the_pieces_and_the_ending() -> None:
    assert lines_of(b"on", b"e\r\ntw", b"o\n\nlast") == ["one", "two", "", "last", None]


def test_a_backslash_goes_on_in_the_next_line() -> None:
    assert lines_of(b"a\\\nb\\\nc\nd\\\n") == ["a\nb\nc", "d", None]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert lines_of(b"\xff1\n") == ["\ufffd1", None]


def test_a_regular_file_can_be_played_from(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("1\n2\n")

    async def main() -> list[str | None]:
        with (tmp_path / "answers").open("rb", buffering=0) as file:
            lines = Lines(file.fileno())
            return [await lines.next() for _ in range(3)]

    assert asyncio.run(main()) == ["1", "2", None]


def test_a_terminal_that_hangs_up_ends_the_input() -> None:
    async def main() -> list[str | None]:
        terminal, descriptor = os.openpty()
        lines = Lines(descriptor)
        os.write(terminal, b"one\n")
        found = [await lines.next()]
        os.close(terminal)
        found.append(await lines.next())
        os.close(descriptor)
        return found

    assert asyncio.run(main()) == ["one", None]


def test_what_is_said_becomes_certain_tokens_with_the_stop_token() -> None:
    async def main() -> None:
        async def ask() -> str | None:
            return "17+2"

        person = PersonGenerator(CHAT, 64, ask)
        whole = await person.generate(request())
        assert CHAT.decode(whole.tokens) == "17+2<end>"
        assert (whole.finish, whole.logprobs.tolist()) == ("stop", [0.0] * 5)
        assert [span.num_tokens for span in whole.version_spans] == [5]
        cut = await person.generate(request(max_tokens=3))
        assert (CHAT.decode(cut.tokens), cut.finish) == ("17+", "length")
        info = await person.info()
        assert (info.context, info.vocabulary) == (64, CHAT.vocabulary)

    asyncio.run(main())


def test_a_person_may_leave() -> None:
    async def main() -> None:
        async def ask() -> str | None:
            return None

        with pytest.raises(PersonLeftError):
            await PersonGenerator(CHAT, 64, ask).generate(request())

    asyncio.run(main())
