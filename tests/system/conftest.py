"""What system tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.system.told import Told, train_and_listen


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return a run that has ended; whoever changes something there takes a copy."""
    return train_and_listen(tmp_path_factory.mktemp("told"))


class MakeDisk(Protocol):
    """Makes a file system of a size in MB."""

    def __call__(self, size_mb: int) -> Path: ...


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Return what mounts one small file system, for as long as the test runs."""
    directory = tmp_path / "disk"

    def make(size_mb: int) -> Path:
        directory.mkdir()
        try:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(directory)],
                check=True, capture_output=True, timeout=30,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            pytest.skip("mounting a file system takes root")
        return directory

    yield make
    if directory.is_mount():
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=30)
