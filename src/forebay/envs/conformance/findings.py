"""What a check has found, and how the checking process tells it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Level = Literal["ok", "warning", "fault"]
_WIDTH = 13


class Finding(msgspec.Struct, frozen=True, tag=True):
    """One thing that was looked at.

    Args:
        check: The subject, one word.
        level: `fault` if a run would go wrong, `warning` if it might mislead, `ok` otherwise.
        what: What was seen.
        remedy: What mends it; empty for `ok`.
    """

    check: str
    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        """Render one line, and one for the remedy."""
        line = f"{self.level:<8} {self.check:<{_WIDTH}} {self.what}"
        return f"{line}\n{'':<{_WIDTH + 9}} {self.remedy}" if self.remedy else line


class Report(msgspec.Struct, frozen=True):
    """Everything that a check of one environment has found.

    Args:
        entrypoint: The environment.
        findings: In the order of the checks.
    """

    entrypoint: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether a run can use the environment; warnings allow that."""
        return not self.faults

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What must be mended."""
        return tuple(finding for finding in self.findings if finding.level == "fault")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What deserves a look."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def verdict(self) -> str:
        """One line that counts what is not right."""
        return f"{self.entrypoint}: {len(self.faults)} faults, {len(self.warnings)} warnings"

    def __str__(self) -> str:
        """Render the list for people."""
        return "\n".join([*map(str, self.findings), self.verdict])


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the checking process is asked to do.

    Args:
        settings: The environment's settings, as JSON types.
        episodes: Episodes that are played with ordinary answers.
        timeout_s: Longest time for one call.
        grace_s: Time that a cancelled call gets to return.
        blocked_s: An event loop blocked this long is reported.
        context_tokens: Most tokens of an episode.
        tokenizer: Directory of the tokenizer and its chat template; empty for the small one.
        slack_s: The next word after a call's deadline is due within this.
    """

    settings: dict[str, Any]
    episodes: int
    timeout_s: float
    grace_s: float = 1.0
    blocked_s: float = 0.5
    context_tokens: int = 512
    tokenizer: str = ""
    slack_s: float = 5.0


class Begun(msgspec.Struct, frozen=True, tag=True):
    """A call has begun; the next word is due within `due_s`."""

    what: str
    due_s: float


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The checks are complete."""


Word = Begun | Finding | Ended
"""A line of the checking process."""
