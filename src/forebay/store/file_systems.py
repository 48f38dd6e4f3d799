"""File systems: where a store can lie. Memory maps and locks of lmdb hold within one machine only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from forebay.errors import ConfigError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NETWORK: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda"),
        *("beegfs", "ceph", "glusterfs", "gpfs", "lustre", "orangefs", "ocfs2", "gfs2"),
    )
)
_NETWORK_FUSE: Final = re.compile(
    r"fuse\..*(blobfuse|ceph|curlftpfs|davfs|gcsfuse|gluster|goofys|hdfs|juicefs|moosefs|rclone|s3|smb|sshfs).*"
)
LOCAL_REMEDY: Final = "Set store.path to a directory on a local disk."


def is_network(kind: str) -> bool:
    """Return whether files of this kind of file system lie on another machine."""
    return kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind) is not None


def refuse_network_filesystem(directory: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a place for a store where its memory map and its locks would not hold.

    Args:
        directory: Where the store is, or will be.
        mounts: The table of mounts, as Linux writes it.

    Raises:
        ConfigError: The directory lies on a network file system.
    """
    kind = filesystem_of(existing(directory), mounts)
    if is_network(kind):
        raise ConfigError(
            f"the store would lie on a network file system: {directory} is on {kind}",
            remedy=f'{LOCAL_REMEDY} Several machines share a store with store.engine="redis".',
        )


def filesystem_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of file system that a path lies on; empty if the system does not say.

    Args:
        path: An existing path.
        mounts: The table of mounts, as Linux writes it.
    """
    try:
        lines = mounts.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    place, best, kind = path.resolve(), -1, ""
    for words in map(str.split, lines):
        point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[4]))
        # The last of several mounts at one place is the one that is seen.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), words[words.index("-") + 1]
    return kind


def existing(path: Path) -> Path:
    """Return a path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
