"""Does an environment keep its contract? For a test of one's own, and for `forebay env check`.

The checks run in a process of their own, which may hang, crash or be blocked: this side never waits longer
than announced for its next word, and kills it with everything that it started.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from forebay.envs.conformance.findings import Begun, CheckRequest, Ended, Finding, Report, Word
from forebay.envs.processes import kill_tree
from forebay.envs.settings import EnvironmentSettings

__all__ = ["Finding", "Report", "check_environment"]

_START_S = 60.0
_decoder: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def check_environment(
    environment: EnvironmentSettings | str,
    *,
    episodes: int = 4,
    timeout_s: float = 20.0,
    context_tokens: int = 512,
    tokenizer: Path | None = None,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Check an environment against the contract of `forebay.envs.protocol`, and what runs need beyond it.

    Looked at: its class and tasks, what reset and step return, rewards, sizes, determinism, concurrent
    episodes, unusual answers, cancellation, close, what episodes leave behind, and who blocks the event loop.
    Artificial delays are left out.

    Args:
        environment: Its settings, or only its entrypoint, `package.module:Class`.
        episodes: Episodes that are played with ordinary answers.
        timeout_s: Longest time for one call; `step_timeout_s` if that is less.
        context_tokens: Most tokens of an episode, as `generator.context` will be.
        tokenizer: Directory of the model's tokenizer; by default the small one.
        on_finding: Called with every finding as it comes.

    Returns:
        What was found; `assert report.ok, str(report)` fails with the whole list.
    """
    settings = EnvironmentSettings(entrypoint=environment) if isinstance(environment, str) else environment
    request = CheckRequest(
        settings=settings.model_dump(mode="json"),
        episodes=episodes,
        timeout_s=timeout_s,
        context_tokens=context_tokens,
        tokenizer=str(tokenizer or ""),
    )
    findings: dict[Finding, None] = {}
    for finding in _run(request):
        if finding not in findings:
            findings[finding] = None
            on_finding(finding)
    return Report(settings.entrypoint, tuple(findings))


def _run(request: CheckRequest) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="forebay-check-") as temporary:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.envs.conformance.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The modules that this process sees are those that the check sees.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": temporary},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin:
                process.stdin.write(msgspec.json.encode(request))
            yield from _listen(process, _Lines(process.stdout.fileno()))
        finally:
            kill_tree(process.pid)
            process.stdout.close()
            process.wait()


class _Lines:
    """Lines of a pipe, each with a deadline.

    Args:
        descriptor: The pipe's end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self, within_s: float) -> bytes | None:
        """Return a line; empty at the end, None if none came in time."""
        deadline_s = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0 or not select.select([self._descriptor], [], [], left_s)[0]:
                return None
            if not (read := os.read(self._descriptor, 1 << 16)):
                return b""
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _listen(process: subprocess.Popen[bytes], lines: _Lines) -> Iterator[Finding]:
    """Yield findings until the process says that it is done, ends, or falls silent."""
    begun = Begun("the start of the check", _START_S)
    while line := lines.next(begun.due_s):
        word = _decoder.decode(line)
        if isinstance(word, Ended):
            return
        if isinstance(word, Begun):
            begun = word
        else:
            yield word
    if line is None:
        what = f"{begun.what} has not come back for {begun.due_s:g} s, and nothing else could run"
        remedy = "Set blocking=true to run it in a process that can be killed, or await instead of blocking."
        yield Finding("blocking", "fault", what, remedy)
        return
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    remedy = "Set blocking=true: then only its own worker process ends. Its last words are on stderr."
    yield Finding("process", "fault", f"{begun.what} ended the process, which {how}", remedy)
