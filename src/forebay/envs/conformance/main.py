"""The checking process: `python -m forebay.envs.conformance.main`; a request on stdin, findings on stdout."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from forebay.chat import Chat, small_chat
from forebay.clock import SystemClock
from forebay.envs.conformance.episodes import check_episodes, check_hostile_answers
from forebay.envs.conformance.findings import Begun, CheckRequest, Ended, Finding, Word
from forebay.envs.conformance.state import (
    check_cancellation,
    check_determinism,
    check_leftovers,
    judge_speed,
    judge_stalls,
)
from forebay.envs.conformance.subject import CallFailedError, Subject
from forebay.envs.conformance.tasks import check_tasks
from forebay.envs.latency import LatencySettings
from forebay.envs.registry import load_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError

_IMPORT_S = 60.0
_CLOSE_S = 15.0


class Speaker:
    """Writes words to the parent, from any thread.

    Args:
        descriptor: The pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, word: Word) -> None:
        """Write one word as a line."""
        line = msgspec.json.encode(word) + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def give_up(self) -> NoReturn:
        """End the process at once, whatever still runs."""
        self.say(Ended())
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Check what stdin asks for."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckRequest)
    speaker = Speaker(os.dup(1))
    # What the environment prints goes to stderr, and it reads nothing.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    asyncio.run(_check(request, speaker))


async def _check(request: CheckRequest, speaker: Speaker) -> NoReturn:
    await run_checks(request, speaker.say, speaker.give_up)
    # Not the end of the event loop, which would wait for what ignores its cancellation.
    speaker.give_up()


async def run_checks(
    request: CheckRequest, say: Callable[[Word], None], give_up: Callable[[], NoReturn]
) -> None:
    """Check an environment in the running event loop.

    Args:
        request: What to check.
        say: Gets what is found, from any thread.
        give_up: Called from another thread when the event loop is blocked for good.
    """
    settings = EnvironmentSettings.model_validate(request.settings)
    settings = settings.model_copy(update={"latency": LatencySettings()})
    say(Begun(f"importing {settings.entrypoint}", _IMPORT_S))
    try:
        kind = load_environment(settings, SystemClock())
        chat = Chat.load(Path(request.tokenizer)) if request.tokenizer else small_chat()
    except ConfigError as error:
        got = f": {error.got}" if error.got is not None else ""
        say(Finding("class", "fault", f"{error.what}{got}", error.remedy or ""))
        return
    say(Finding("class", "ok", f"{settings.entrypoint} is imported and made"))
    subject = Subject(request, kind, chat, say, give_up)
    try:
        await _probe(subject)
    except CallFailedError as failed:
        say(failed.finding)
    for finding in (*dict.fromkeys(subject.noticed), *judge_stalls(subject), *judge_speed(subject)):
        say(finding)
    subject.watch.stop()
    say(Begun("freeing what episodes share", _CLOSE_S))
    await kind.close()


async def _probe(subject: Subject) -> None:
    """Run the checks that the rest needs, then the rest, each whatever came of the one before."""
    await subject.call(subject.kind.open, "start")
    findings, tasks = await check_tasks(subject)
    for finding in [*findings, *await check_episodes(subject, tasks)]:
        subject.say(finding)
    temporary = Path(tempfile.gettempdir())
    probes: tuple[Callable[[], Awaitable[list[Finding]]], ...] = (
        lambda: check_determinism(subject, tasks),
        lambda: check_hostile_answers(subject, tasks[0], temporary / "canary"),
        lambda: check_cancellation(subject, tasks[0]),
        lambda: check_leftovers(subject, tasks[0], temporary),
    )
    for probe in probes:
        try:
            for finding in await probe():
                subject.say(finding)
        except CallFailedError as failed:
            if failed.stuck:
                raise
            subject.say(failed.finding)


if __name__ == "__main__":
    main()
