"""The board: what one process writes, the others read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.actors.board import Board, DirectoryBoard, MemoryBoard, Note, Posted, Sight, shifted
from forebay.actors.levels import Turn

NOTE = Note(
    1.0,
    2.0,
    {"tool": 3},
    {"tool": True},
    (Sight(4, {"tool": (Turn(1, 1.5, 0.25, 0.5),)}, {"tool": 2}, {"tool": (9.0,)}),),
    {"other": 7},
    {"tool": 48},
)


def boards(kind: str, path: Path) -> tuple[Board, Board]:
    if kind == "directory":
        return DirectoryBoard(path / "board", "a/0"), DirectoryBoard(path / "board", "b")
    notes: dict[str, tuple[float, Note]] = {}
    return MemoryBoard("a/0", lambda: 0.0, notes), MemoryBoard("b", lambda: 0.0, notes)


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_each_sees_the_newest_note_of_all(kind: str, tmp_path: Path) -> None:
    first, second = boards(kind, tmp_path)
    first.post(Note(1.0, 1.0))
    first.post(NOTE)
    second.post(Note(5.0, 5.0))
    assert {name: one.note for name, one in second.read().items()} == {"a/0": NOTE, "b": Note(5.0, 5.0)}
    first.leave()
    first.leave()
    assert list(second.read()) == ["b"]


def test_the_age_is_that_of_the_files_and_what_is_long_dead_is_removed(tmp_path: Path) -> None:
    first, second = boards("directory", tmp_path)
    first.post(NOTE)
    second.post(NOTE)
    (mine,) = (path for path in (tmp_path / "board").iterdir() if path.name.startswith("a"))
    written_s = mine.stat().st_mtime
    os.utime(mine, (written_s, written_s - 60.0))
    assert second.read()["a/0"].age_s == pytest.approx(60.0, abs=5.0)
    os.utime(mine, (written_s, written_s - 9999.0))
    assert list(second.read()) == ["b"]
    assert not mine.exists()


def test_a_note_that_cannot_be_understood_is_passed_over(tmp_path: Path) -> None:
    first, second = boards("directory", tmp_path)
    first.post(NOTE)
    (mine,) = (tmp_path / "board").iterdir()
    mine.write_bytes(b"\xc1 of another version")
    second.post(NOTE)
    assert list(second.read()) == ["b"]


def test_times_of_another_clock_become_the_reader_s() -> None:
    turns = shifted(Posted(0.5, NOTE), NOTE.sights[0], now_s=1000.0)
    assert turns == {"tool": (Turn(1, 999.0, 0.25, 0.5),)}


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_nothing_is_posted_any_more_by_one_that_has_left(kind: str, tmp_path: Path) -> None:
    first, second = boards(kind, tmp_path)
    first.post(NOTE)
    second.post(NOTE)
    first.leave()
    first.post(NOTE)
    assert list(second.read()) == ["b"]
