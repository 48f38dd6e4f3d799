from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.launch.probes import storage


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", "ok"),
        ("nfs4", "bad"),
        ("cifs", "bad"),
        ("9p", "bad"),
        ("fuse.sshfs", "bad"),
        ("fuse.mine", "warn"),
        ("tmpfs", "warn"),
    ],
)
def test_kinds_of_file_system(kind: str, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "filesystem_of", lambda path: kind)
    room, finding = storage.look_at_disk(tmp_path)
    assert room.what == "disk" and (finding.what, finding.level) == ("file system", level)


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    new = tmp_path / "runs" / "mine"
    found = [
        *storage.look_at_writing(new, SystemClock()),
        *storage.look_at_store(new),
        *storage.look_at_cache(new),
    ]
    assert [(item.what, item.level) for item in found][1:] == [("store", "ok"), ("compile cache", "ok")]
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_warning() -> None:
    [finding] = storage.look_at_cache(Path("/proc/forebay/jax"))
    assert finding.level == "warn" and "JAX_COMPILATION_CACHE_DIR" in finding.remedy
