from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError
from forebay.launch.probes import storage

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:26 / {root}/people rw master:2 - nfs4 server:/home rw,vers=4.2
31 30 0:27 / {root}/people/my\\040disk rw - xfs /dev/vdb rw
32 21 0:28 / {root}/lost rw - tmpfs tmpfs rw
33 21 0:29 / {root}/lost rw - fuse.sshfs me@host: rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    for name in ("people/runs", "people/my disk/runs", "lost", "peoples"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(root=tmp_path.resolve()))
    return table


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("people/runs", "nfs4"),
        ("people/my disk/runs", "xfs"),
        ("lost", "fuse.sshfs"),
        ("peoples", "ext4"),
        (".", "ext4"),
    ],
)
def test_the_nearest_mount_and_the_last_one_there_says_the_kind(mounts: Path, place: str, kind: str) -> None:
    assert storage.filesystem_of(mounts.parent / place, mounts) == kind


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", "ok"),
        ("nfs4", "bad"),
        ("cifs", "bad"),
        ("fuse.sshfs", "warn"),
        ("9p", "warn"),
        ("tmpfs", "warn"),
    ],
)
def test_kinds_of_file_system(kind: str, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "filesystem_of", lambda path: kind)
    room, finding = storage.look_at_disk(tmp_path)
    assert room.what == "disk" and (finding.what, finding.level) == ("file system", level)
    if level == "bad":
        with pytest.raises(ConfigError, match="network file system") as caught:
            storage.refuse_network_filesystem(tmp_path / "not" / "yet")
        assert "store.path" in str(caught.value)
    else:
        storage.refuse_network_filesystem(tmp_path)


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
