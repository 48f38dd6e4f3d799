"""Where a store can lie: the nearest mount decides, and a network is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay.store import StoreSettings, open_store
from forebay.store import lmdb as lmdb_engine
from forebay.store.file_systems import filesystem_of, is_network, refuse_network_filesystem

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
    assert filesystem_of(mounts.parent / place, mounts) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse"]
)
def test_network_kinds(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse", "fuse.gocryptfs", ""]
)
def test_local_kinds(kind: str) -> None:
    assert not is_network(kind)


def test_a_network_is_refused_with_the_remedy(mounts: Path) -> None:
    root = mounts.parent
    with pytest.raises(ConfigError, match=r"is on nfs4\. Set store\.path to .* local disk.*engine=\"redis\""):
        refuse_network_filesystem(root / "people" / "not" / "yet", mounts)
    refuse_network_filesystem(root / "people" / "my disk" / "runs", mounts)


def test_opening_a_store_there_makes_nothing(
    mounts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        lmdb_engine, "refuse_network_filesystem", lambda path: refuse_network_filesystem(path, mounts)
    )
    with pytest.raises(ConfigError, match="network file system"):
        open_store(StoreSettings(path=tmp_path / "people" / "store"), "run-1")
    assert not (tmp_path / "people" / "store").exists()
