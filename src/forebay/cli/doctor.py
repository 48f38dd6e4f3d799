"""`forebay doctor`: look at the machine and say what would go wrong."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from forebay.errors import ForebayError, PeerFailedError
from forebay.store import StoreSettings, open_store

_PACKAGES = (
    "forebay",
    "jax",
    "jaxlib",
    "optax",
    "lmdb",
    "msgspec",
    "numpy",
    "tokenizers",
)
_MIN_FREE_BYTES = 2 << 30
_MIN_OPEN_FILES = 1024
_JAX_PROBE = "import jax; print(jax.default_backend(), len(jax.devices()), jax.devices()[0].device_kind)"


class Finding(NamedTuple):
    """One line of the report: what was looked at, whether it is all right, and what was seen."""

    what: str
    fine: bool
    seen: str


def doctor(
    directory: Annotated[Path, typer.Option(help="Where runs will be written.")] = Path("runs"),
) -> None:
    """Check Python, packages, devices, cores, disk and loopback; exit with 4 if something is wrong."""
    findings = list(examine(directory))
    for finding in findings:
        typer.echo(f"{'ok ' if finding.fine else 'BAD'}  {finding.what:<16} {finding.seen}")
    bad = [finding.what for finding in findings if not finding.fine]
    if bad:
        raise PeerFailedError(f"forebay will not run well here: {', '.join(bad)}")


def examine(directory: Path) -> Iterator[Finding]:
    """Yield a finding for each thing that a run depends on."""
    yield Finding("python", sys.version_info >= (3, 11), platform.python_version())
    for package in _PACKAGES:
        yield _package(package)
    yield _probe("jax devices", _jax_devices)
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "cores", cores >= 2, f"{cores}" + ("" if cores >= 2 else "; learner and generator will share it")
    )
    yield _probe("disk", lambda: _disk(directory))
    yield _probe("store", lambda: _store(directory))
    yield _probe("loopback", _loopback)
    yield _open_files()


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed; make setup, or pip install 'forebay[learner]'")


def _probe(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except (OSError, ForebayError, subprocess.SubprocessError) as error:
        return Finding(what, False, str(error))


def _jax_devices() -> str:
    # In a process of its own: a broken driver must not take the report down.
    result = subprocess.run(
        [sys.executable, "-c", _JAX_PROBE], capture_output=True, text=True, timeout=120, check=False
    )
    if result.returncode:
        raise PeerFailedError(f"jax does not start: {result.stderr.strip().splitlines()[-1:]}")
    return result.stdout.strip()


def _disk(directory: Path) -> str:
    free_bytes = shutil.disk_usage(_existing(directory)).free
    if free_bytes < _MIN_FREE_BYTES:
        raise PeerFailedError("little disk space", got=f"{free_bytes} bytes free", limit=_MIN_FREE_BYTES)
    with tempfile.TemporaryFile(dir=_existing(directory)) as file:
        os.fsync(file.fileno())
    return f"{free_bytes / 2**30:.0f} GiB free at {directory}"


def _store(directory: Path) -> str:
    with tempfile.TemporaryDirectory(dir=_existing(directory)) as scratch:
        store = open_store(StoreSettings(path=Path(scratch) / "store"), "doctor")
        store.rewind(0)
        store.close()
    return "opens and commits here"


def _loopback() -> str:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), 2.0),
    ):
        return "127.0.0.1 accepts connections"


def _open_files() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES
    return Finding("open files", enough, f"{soft}" + ("" if enough else f"; ulimit -n {_MIN_OPEN_FILES}"))


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.absolute().parent
    return path
