"""The run directory: where everything of one run lies, who made it, and the lock that keeps it to one run.

```
RUN/
  run.lock  manifest.json  metrics.jsonl  life.jsonl  summary.json
  store/  weights/  checkpoints/  logs/  samples/  trace/
```
Retention is the part's own: checkpoints and weights keep their newest, logs and metrics rotate by size.
With `learner.checkpoint_path` the checkpoints lie elsewhere.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import secrets
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from forebay.clock import Clock
from forebay.errors import ConfigError, RecordError, RunLockedError
from forebay.trajectory import check_name

Mode = Literal["new", "resume", "auto"]

FORMAT = 1
_GIT_TIMEOUT_S = 10.0
_PACKAGES = ("forebay", "jax", "jaxlib", "numpy", "optax", "lmdb")


class GitState(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that a directory is at, and whether files differ from it."""

    commit: str
    dirty: bool


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was started with; written once.

    Args:
        format: Number of this layout.
        run_id: Unique name of the run, carried by its store, weights, checkpoints and trajectories.
        created_s: Wall clock at creation.
        config: The complete configuration, defaults included; JSON types only.
        versions: Of Python and of the packages that decide the numbers.
        git: State of the working directory's repository; None if it is none.
        seeds: Every seed, by name.
    """

    format: int
    run_id: str
    created_s: float
    config: dict[str, Any]
    versions: dict[str, str]
    git: GitState | None
    seeds: dict[str, int]


class LockOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the lock of a run directory."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths inside a run directory; nothing is read or made."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by the one process that runs here."""
        return self.path / "run.lock"

    @property
    def manifest(self) -> Path:
        """What the run was started with."""
        return self.path / "manifest.json"

    @property
    def store(self) -> Path:
        """Tasks, trajectories and the journal."""
        return self.path / "store"

    @property
    def weights(self) -> Path:
        """Published versions."""
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        """Saved states of the learner."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.path / "logs"

    @property
    def samples(self) -> Path:
        """A few trained trajectories, as wire frames."""
        return self.path / "samples"

    @property
    def trace(self) -> Path:
        """What each process did when, one file per process."""
        return self.path / "trace"

    @property
    def board(self) -> Path:
        """What the actor processes tell one another, one file per process."""
        return self.path / "board"

    @property
    def metrics(self) -> Path:
        """One JSON line per step."""
        return self.path / "metrics.jsonl"

    @property
    def lives(self) -> Path:
        """One JSON line per step: where its tokens spent their lives."""
        return self.path / "life.jsonl"

    @property
    def summary(self) -> Path:
        """The figures of the run; written at its end."""
        return self.path / "summary.json"


class RunDirectory:
    """A run directory that this process owns until `close`; made with `open_run`.

    Args:
        layout: Its paths.
        manifest: What the run was started with.
        resumed: Whether the run had been started before.
        lock: The open lock file.
    """

    def __init__(self, layout: RunLayout, manifest: RunManifest, *, resumed: bool, lock: IO[bytes]) -> None:
        self.layout = layout
        self.manifest = manifest
        self.resumed = resumed
        self._lock = lock

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_id(self) -> str:
        """Unique name of the run."""
        return self.manifest.run_id

    def fileno(self) -> int:
        """Return the descriptor of the lock, held until every process that inherited it has ended."""
        return self._lock.fileno()

    def close(self) -> None:
        """Let another process run here."""
        self._lock.close()


def open_run(
    path: Path,
    *,
    config: Mapping[str, Any],
    seeds: Mapping[str, int],
    clock: Clock,
    mode: Mode = "auto",
    run_id: str | None = None,
) -> RunDirectory:
    """Lock a run directory, and make it if it is new.

    Args:
        path: The directory; its name must be safe as an identifier.
        config: The complete configuration; kept in the manifest of a new run.
        seeds: Every seed; kept in the manifest of a new run.
        clock: Dates the run.
        mode: `new` refuses a directory that has a run, `resume` one that has none, `auto` takes either.
        run_id: Name for a new run; by default the directory's name and a random suffix.

    Raises:
        RunLockedError: A live process runs here; the message names it.
        ConfigError: The name or the mode does not fit, or the manifest is damaged.
    """
    path = path.absolute()
    _check_directory_name(path.name)
    layout = RunLayout(path)
    if mode == "resume" and not layout.manifest.exists():
        raise ConfigError(
            f"there is no run to resume in {path}", remedy="Check the path, or start a new run."
        )
    path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undone:
        lock = undone.enter_context(_lock(layout.lock))
        resumed = layout.manifest.exists()
        if resumed and mode == "new":
            raise ConfigError(f"{path} holds a run already", remedy="Resume it, or choose another directory.")
        if not resumed:
            _create(layout, config, seeds, clock, run_id)
        manifest = read_run_manifest(path)
        undone.pop_all()  # from here on it is the directory's to close
    return RunDirectory(layout, manifest, resumed=resumed, lock=lock)


def read_run_manifest(path: Path) -> RunManifest:
    """Return what a run was started with; takes no lock.

    Raises:
        ConfigError: There is no run, or its manifest is damaged or of another layout.
    """
    source = RunLayout(path).manifest
    try:
        manifest = msgspec.json.decode(source.read_bytes(), type=RunManifest)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} is not a run directory", remedy="Check the path.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is damaged: {error}", remedy="Start a new run elsewhere.") from error
    if manifest.format != FORMAT:
        raise ConfigError(f"{source} has another layout", got=manifest.format, limit=FORMAT)
    return manifest


def git_state(directory: Path) -> GitState | None:
    """Return the state of the repository that a directory is in; None outside one, or without git."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else GitState(commit=commit, dirty=bool(changes))


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _lock(path: Path) -> IO[bytes]:
    # Opened without truncation: until the lock is ours, the content names its owner.
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _read_owner(file)
        file.close()
        raise RunLockedError(
            f"{path.parent} belongs to a live run: process {owner}",
            remedy="Wait for it, stop it, or choose another run directory.",
        ) from None
    file.truncate(0)
    file.write(msgspec.json.encode(LockOwner(pid=os.getpid(), host=socket.gethostname())))
    file.flush()
    return file


def _read_owner(file: IO[bytes]) -> str:
    try:
        owner = msgspec.json.decode(file.read(4096), type=LockOwner)
    except msgspec.MsgspecError:
        return "that has just started"
    return f"{owner.pid} on {owner.host}"


def _create(
    layout: RunLayout, config: Mapping[str, Any], seeds: Mapping[str, int], clock: Clock, run_id: str | None
) -> None:
    manifest = RunManifest(
        format=FORMAT,
        run_id=check_name(run_id or f"{layout.path.name}-{secrets.token_hex(3)}", "run_id"),
        created_s=clock.wall_s(),
        config=dict(config),
        versions=_versions(),
        git=git_state(Path.cwd()),
        seeds=dict(seeds),
    )
    for directory in (layout.store, layout.weights, layout.checkpoints, layout.logs):
        directory.mkdir(exist_ok=True)
    partial = layout.manifest.with_name(".partial-manifest.json")
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(layout.manifest)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _check_directory_name(name: str) -> None:
    try:
        check_name(name, "name of the run directory")
    except RecordError as error:
        raise ConfigError(str(error), remedy="Choose another name.") from error
