"""A run directory read into records: a whole run, one that goes on, or one that died before a step."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError
from forebay.report.actor_logs import ActorLogs, actor_log_paths, read_actor_logs
from forebay.report.history import RECENT_S, History, read_history
from forebay.report.samples import SampleReading, read_samples, token_rules
from forebay.telemetry.life_log import LifeTable, read_lives_since
from forebay.telemetry.metrics import read_metrics

Ending = Literal["ended", "goes on", "ended without a summary"]

_MAX_EVALUATIONS: Final = 2000
_COMPARISON: Final = ("sync", "decoupled")


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation on held-out tasks.

    Args:
        step: The version evaluated.
        time_s: Wall clock.
        reward: Mean; None if no episode could be scored.
        reward_low: Lower end of its 95 % interval.
        reward_high: Upper end.
        num_tasks: Episodes.
        num_failed: Those without a score.
    """

    step: int
    time_s: float
    reward: float | None = None
    reward_low: float | None = None
    reward_high: float | None = None
    num_tasks: int = 0
    num_failed: int = 0


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report says about one run.

    Args:
        name: How the page calls it.
        path: Its directory.
        run_id: Its unique name.
        created_s: Wall clock at its creation.
        config: Its configuration, as stored.
        versions: Of Python and packages.
        commit: Of the repository it was started from; empty if unknown.
        ending: Whether it ended in order, goes on, or was cut off.
        summary: The figures of `summary.json`; None before a run has ended in order.
        history: Its metrics.
        evaluations: In the order of time.
        actors: What its actors logged.
        lives: Where its trained tokens spent their lives; None if that was not recorded.
        recent_lives: The same of its last five minutes.
        samples: Some trajectories that it trained.
        problems: Files that could not be read.
    """

    name: str
    path: Path
    run_id: str
    created_s: float
    config: dict[str, Any]
    versions: Mapping[str, str]
    commit: str
    ending: Ending
    summary: Mapping[str, Any] | None
    history: History
    evaluations: tuple[Evaluation, ...]
    actors: ActorLogs
    samples: SampleReading
    lives: LifeTable | None = None
    recent_lives: LifeTable | None = None
    problems: tuple[str, ...] = ()

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a stored setting by its dotted name."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def stored_group_size(self) -> int:
        """Members of a group as the store holds it: a task's episodes, or fewer where not all wait."""
        siblings = str(self.setting("objective.siblings", "all"))
        return {"pairs": 2, "finished": 1}.get(siblings) or self._count("batching.group_size")

    @property
    def stored_groups(self) -> int:
        """Groups of the store that a batch takes."""
        return self._count("batching.groups") * self._count("batching.group_size") // self.stored_group_size

    def _count(self, key: str) -> int:
        value = self.setting(key)
        return value if isinstance(value, int) and value > 0 else 1


class _Git(msgspec.Struct, frozen=True):
    commit: str = ""
    dirty: bool = False


class _Manifest(msgspec.Struct, frozen=True):
    """What every version of a manifest has had."""

    run_id: str
    config: dict[str, Any]
    created_s: float = 0.0
    versions: dict[str, str] = {}
    git: _Git | None = None


class _Owner(msgspec.Struct, frozen=True):
    pid: int
    host: str


def find_runs(path: Path) -> tuple[Path, ...]:
    """Return the run directories that a path names: itself, or the two of a comparison.

    Raises:
        ConfigError: There is no run.
    """
    if (path / "manifest.json").is_file():
        return (path,)
    both = tuple(path / name for name in _COMPARISON)
    found = tuple(run for run in both if (run / "manifest.json").is_file())
    if found:
        return found
    what = "is not a run directory" if path.is_dir() else "is not a directory"
    raise ConfigError(
        f"{path} {what}", remedy="Name a directory that holds manifest.json, or that of a comparison."
    )


def load_run(path: Path, name: str | None = None, clock: Clock | None = None) -> RunRecord:
    """Read a run directory; what it lacks is left out, what is damaged is named in `problems`.

    Args:
        path: The run directory.
        name: How to call it; its own name by default.
        clock: Tells how far a run is that goes on.

    Raises:
        ConfigError: It has no manifest that can be read.
        OSError: Its metrics cannot be read.
    """
    manifest = _read_manifest(path)
    problems: list[str] = []
    history = read_history((path / "metrics.jsonl.1", path / "metrics.jsonl"))
    summary = _read_object(path / "summary.json", problems)
    end_s = history.end_s or (clock or SystemClock()).wall_s()
    lives, recent_lives = read_lives_since(path / "life.jsonl", end_s - RECENT_S)
    commit = "" if manifest.git is None else manifest.git.commit + "+" * manifest.git.dirty
    return RunRecord(
        name=name or path.absolute().name,
        path=path,
        run_id=manifest.run_id,
        created_s=manifest.created_s,
        config=manifest.config,
        versions=manifest.versions,
        commit=commit,
        ending=_ending(path, summary),
        summary=summary,
        history=history,
        evaluations=_read_evaluations(path / "eval.jsonl"),
        actors=read_actor_logs(actor_log_paths(path / "logs"), history.begin_s or manifest.created_s, end_s),
        samples=read_samples(path / "samples", path / "model", token_rules(manifest.config)),
        lives=lives,
        recent_lives=recent_lives,
        problems=tuple(problems),
    )


def _read_manifest(path: Path) -> _Manifest:
    source = path / "manifest.json"
    try:
        return msgspec.json.decode(source.read_bytes(), type=_Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} is not a run directory", remedy="Check the path.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} is damaged: {error}", remedy="Restore it from a copy.") from error


def _read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return None


def _read_evaluations(path: Path) -> tuple[Evaluation, ...]:
    if not path.is_file():
        return ()
    found: list[Evaluation] = []
    for line in read_metrics(path):
        try:
            found.append(msgspec.convert(line, Evaluation))
        except msgspec.ValidationError:
            continue
    stride = -(-len(found) // _MAX_EVALUATIONS) or 1
    return tuple(found[::stride])


def _ending(path: Path, summary: Mapping[str, Any] | None) -> Ending:
    if _is_alive(path / "run.lock"):
        return "goes on"
    return "ended without a summary" if summary is None else "ended"


def _is_alive(lock: Path) -> bool:
    """Return whether the process that the lock names exists; the lock itself is left alone."""
    try:
        owner = msgspec.json.decode(lock.read_bytes(), type=_Owner)
    except (msgspec.MsgspecError, OSError):
        return False
    return owner.host == socket.gethostname() and os.path.exists(f"/proc/{owner.pid}")
