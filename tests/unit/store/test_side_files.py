"""Side files: whole or absent, named safely, swept when their writer is dead and nothing refers to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.errors import WireError
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
