from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli.troubles import Troubles
from forebay.clock import ManualClock


class Logs:
    """A log directory as actors fill it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self.clock = ManualClock()
        self.write("actor-0", {"ended.old.failed": 99})
        self.troubles = Troubles(path, {"old": "calculator", "mine": "m:Mine"}, self.said.append, self.clock)

    def write(self, actor: str, record: dict[str, float]) -> None:
        with (self.path / f"{actor}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def look(self) -> list[str]:
        self.clock.advance(10.0)
        self.troubles.look()
        return self.said


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_an_environment_that_fails_every_time_is_told_once_with_its_last_failure(logs: Logs) -> None:
    logs.write("actor-0", {"ended.mine.failed": 3})
    assert logs.look() == []
    (logs.path / "actor-1.log").write_text(
        "WARNING actor-1 slot_run: g1 failed (environment): mine/g1/step raised TypeError: no number\n"
        "WARNING actor-1 slot_run: g2 failed (environment): other/g2/step raised ValueError: other\n"
    )
    logs.write("actor-1", {"ended.mine.failed": 2})
    [sentence] = logs.look()
    assert sentence == (
        "environment mine failed 5 times and never ended an episode; actor-1.log says last: "
        "(environment): mine/g1/step raised TypeError: no number. Try: forebay env check m:Mine"
    )
    logs.write("actor-0", {"ended.mine.failed": 50})
    assert len(logs.look()) == 1
    assert "failed 55 times" in logs.troubles.sentences()[0]


def test_an_environment_that_hangs_in_reset_is_told(logs: Logs) -> None:
    logs.write("actor-0", {"ended.mine.accepted": 8, "finish.timeout": 8})
    [sentence] = logs.look()
    assert "environment mine was still in reset" in sentence and "forebay env check m:Mine" in sentence


def test_one_that_works_now_and_then_is_no_trouble(logs: Logs) -> None:
    logs.write("actor-0", {"ended.mine.failed": 50, "ended.mine.accepted": 1, "environment_s.mine.p50": 0.1})
    with (logs.path / "actor-0.jsonl").open("a") as file:
        file.write('{"ended.mine.failed": 10}\n{"torn\n{"half of a li')
    assert logs.look() == [] and logs.troubles.sentences() == []


def test_what_earlier_starts_left_is_not_told_again(logs: Logs) -> None:
    assert logs.look() == []
