"""Troubles of environments, told while a run goes on: read from what its actors count and log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from forebay.clock import Clock

_LOOK_EVERY_S = 2.0
_MIN_EPISODES = 4
_TAIL_BYTES = 64 << 10
_MAX_LINE_LENGTH = 300


class _Count(msgspec.Struct):
    accepted: int = 0
    failed: int = 0
    stepped: bool = False


class Troubles:
    """Says once for each environment that it fails every time, or that it never answers.

    Args:
        logs: Directory in which each actor process has `NAME.jsonl` and `NAME.log`.
        entrypoints: What each environment is, by its name.
        say: Told a sentence when a trouble is first seen.
        clock: Source of time.
    """

    def __init__(
        self, logs: Path, entrypoints: Mapping[str, str], say: Callable[[str], None], clock: Clock
    ) -> None:
        self._logs, self._entrypoints, self._say, self._clock = logs, entrypoints, say, clock
        self._offsets = {path: path.stat().st_size for path in logs.glob("*.jsonl")}
        self._counts = {name: _Count() for name in entrypoints}
        self._said: set[str] = set()
        self._next_s = clock.monotonic_s()

    def look(self) -> None:
        """Read what actors have written since the last look, now and then."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_EVERY_S
        self._read()
        for name in self._entrypoints:
            sentence = self._sentence(name)
            if sentence and name not in self._said:
                self._said.add(name)
                self._say(sentence)

    def sentences(self) -> list[str]:
        """Return what is wrong with each environment by now; nothing if they all work."""
        self._read()
        return [sentence for name in self._entrypoints if (sentence := self._sentence(name))]

    def _sentence(self, name: str) -> str:
        count = self._counts[name]
        check = f"Try: forebay env check {self._entrypoints[name]}"
        if count.failed >= _MIN_EPISODES and not count.accepted:
            last = self._last_failure(name)
            return f"environment {name} failed {count.failed} times and never ended an episode{last}. {check}"
        if count.accepted >= _MIN_EPISODES and not count.stepped:
            return (
                f"environment {name} was still in reset when the deadline of each of its {count.accepted} "
                f"episodes came (environment.{name}.step_timeout_s). {check}"
            )
        return ""

    def _last_failure(self, name: str) -> str:
        for path in sorted(self._logs.glob("*.log")):
            lines = [line for line in _tail(path) if " failed (" in line and f" {name}/" in line]
            if lines:
                _, _, why = lines[-1].partition(" failed ")
                return f"; {path.name} says last: {why[:_MAX_LINE_LENGTH]}"
        return ""

    def _read(self) -> None:
        for path in self._logs.glob("*.jsonl"):
            for record in self._new_records(path):
                self._add(record)

    def _new_records(self, path: Path) -> list[dict[str, object]]:
        offset = self._offsets.get(path, 0)
        size = path.stat().st_size
        offset = offset if offset <= size else 0  # it began anew
        with path.open("rb") as file:
            file.seek(offset)
            whole, _, _ = file.read().rpartition(b"\n")
        self._offsets[path] = offset + len(whole) + (1 if whole else 0)
        return [record for line in whole.splitlines() if (record := _decoded(line))]

    def _add(self, record: Mapping[str, object]) -> None:
        for name, count in self._counts.items():
            count.accepted += _number(record, f"ended.{name}.accepted")
            count.failed += _number(record, f"ended.{name}.failed")
            count.stepped = count.stepped or f"environment_s.{name}.p50" in record


def _number(record: Mapping[str, object], key: str) -> int:
    value = record.get(key, 0)
    return int(value) if isinstance(value, int | float) else 0


def _decoded(line: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()
