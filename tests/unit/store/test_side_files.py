"""Side files: whole or absent, named safely, swept when their writer is dead and nothing refers to them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import StoreError, WireError
from forebay.store.side_files import SideFiles

DEAD = "999999999-17-" + "0" * 24


@pytest.fixture
def files(tmp_path: Path) -> SideFiles:
    return SideFiles(tmp_path / "payloads", sync=True)


def test_round_trip(files: SideFiles, tmp_path: Path) -> None:
    name = files.write(b"frame" * 1000)
    assert files.read(name) == b"frame" * 1000
    assert [path.name for path in (tmp_path / "payloads").iterdir()] == [name]
    files.remove(name)
    files.remove(name)
    with pytest.raises(WireError, match="cannot be read"):
        files.read(name)


@pytest.mark.parametrize("name", ["../store.json", "/etc/passwd", "", "1-2-3", "x" * 300])
def test_names_from_the_store_cannot_leave_the_directory(files: SideFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(WireError, match="not the name of a side file"):
        files.read(name)
    files.remove(name)
    assert (tmp_path / "store.json").exists()


@pytest.mark.parametrize("error", ["too many files", "a disk that gives nothing back"])
def test_what_can_be_mended_is_no_damage(
    files: SideFiles, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Only what no retry mends may throw a trajectory away."""
    number, kind = {"too many files": (errno.EMFILE, StoreError)}.get(error, (errno.EIO, WireError))
    name = files.write(b"frame")

    def fail(path: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(kind, match="side file cannot be read"):
        files.read(name)


def test_a_directory_or_a_huge_file_in_the_place_of_a_frame_is_refused(
    files: SideFiles, tmp_path: Path
) -> None:
    for number, (reason, place) in enumerate((("not_a_file", Path.mkdir), ("too_large", Path.touch))):
        path = tmp_path / "payloads" / (DEAD[:-1] + str(number))
        place(path)
        if path.is_file():
            os.truncate(path, (1 << 30) + 1)
        with pytest.raises(WireError) as caught:
            files.read(path.name)
        assert caught.value.reason == reason
        files.remove(path.name)
    assert [path.name for path in (tmp_path / "payloads").iterdir()] == [DEAD[:-1] + "0"]


def test_sweep_removes_only_what_is_dead_and_unused(files: SideFiles, tmp_path: Path) -> None:
    mine = files.write(b"mine")
    used = DEAD[:-1] + "1"
    # The same process id in another life: its start time tells.
    recycled = f"{os.getpid()}-1-" + "0" * 24
    for name in (DEAD, DEAD + ".part", used, recycled, "notes.txt"):
        (tmp_path / "payloads" / name).write_bytes(b"x")
    assert files.sweep(lambda: {used}) == 3
    assert sorted(path.name for path in (tmp_path / "payloads").iterdir()) == sorted(
        [mine, used, "notes.txt"]
    )


def test_what_a_dead_process_staged_is_swept(files: SideFiles, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from forebay.store.side_files import SideFiles; "
        "SideFiles(Path(sys.argv[1]), sync=False).write(b'orphan')"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "payloads"], check=True)
    assert len(list((tmp_path / "payloads").iterdir())) == 1
    assert files.sweep(set) == 1
