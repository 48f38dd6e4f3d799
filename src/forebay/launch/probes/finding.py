"""What a probe found, and how probes are run: all at once, each under a deadline."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from forebay.clock import Clock
from forebay.errors import ForebayError

Level = Literal["ok", "note", "warn", "bad"]
"""ok; worth knowing; works, but less well than it could; a run would fail or lose something."""

LIMIT_S = 5.0


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, how it is, what was seen, and what mends it.

    Args:
        what: The subject, in a word or two.
        level: How it is.
        seen: What was found, with its unit.
        remedy: A command or a setting; empty if there is nothing to do.
    """

    what: str
    level: Level
    seen: str
    remedy: str = ""


class Probe(NamedTuple):
    """A look at one subject.

    Attributes:
        what: The subject, for the case that no answer comes.
        look: Returns what it found; may raise `OSError` or a `ForebayError`, which is then the finding.
        limit_s: Longest time for it, seconds.
    """

    what: str
    look: Callable[[], Sequence[Finding]]
    limit_s: float = LIMIT_S


def look(probes: Sequence[Probe], clock: Clock) -> Iterator[Finding]:
    """Run all probes at the same time and yield what they find, in their order.

    Consumes: probes. Waits for: each probe's thread, until the probe's deadline. Produces: findings; a
    probe that does not answer is one, and its thread is left behind: it may be waiting for a dead disk.

    Args:
        probes: What to look at.
        clock: Source of time.
    """
    started_s = clock.monotonic_s()
    runs = [_Run(probe) for probe in probes]
    for run in runs:
        run.thread.start()
    for run in runs:
        run.thread.join(max(0.0, started_s + run.probe.limit_s - clock.monotonic_s()))
        yield from run.findings()


class _Run:
    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.thread = threading.Thread(target=self._look, name=f"probe-{probe.what}", daemon=True)
        self._found: Sequence[Finding] | None = None

    def findings(self) -> Sequence[Finding]:
        if self._found is not None:
            return self._found
        what, limit_s = self.probe.what, self.probe.limit_s
        if self.thread.is_alive():
            return (Finding(what, "bad", f"no answer in {limit_s:.0f} s", "Try again on an idle machine."),)
        return (Finding(what, "bad", "could not be looked at", "Please report the traceback above."),)

    def _look(self) -> None:
        try:
            self._found = self.probe.look()
        except ForebayError as error:
            facts = [f"{name} {fact}" for name, fact in (("got", error.got), ("limit", error.limit)) if fact]
            seen = error.what + (f" ({', '.join(facts)})" if facts else "")
            self._found = (Finding(self.probe.what, "bad", seen, error.remedy or ""),)
        except (OSError, subprocess.SubprocessError) as error:
            self._found = (Finding(self.probe.what, "bad", str(error)),)
