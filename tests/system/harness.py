"""Runs a training, kills its processes at planned moments, and accounts for every trajectory afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from forebay.cli.runs import join_run
from forebay.learner.meter import count_repeated, surviving_lines
from forebay.staleness import staleness_of
from forebay.store.accounting import count_lost
from forebay.store.protocol import JournalEntry
from forebay.store.rules import RuleStore
from forebay.telemetry.faults import PLAN_VARIABLE
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary
from forebay.trajectory import PolicyVersion
from forebay.weights.layout import read_marker
from tests.system.kill_plan import RESUMING, Kill, Role

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("harness.toml")
COMMANDS: dict[str, str] = {"learn": "learner", "generate": "generator", "act": "actor"}
_POLL_S = 0.02


class Server(Protocol):
    """The server of a store."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def restart(self) -> object:
        """Kill it with SIGKILL and start it again."""
        ...


@dataclass
class Harness:
    """A training in a directory of its own, as processes that can be killed.

    Args:
        directory: Where the run is made.
        overrides: Settings that differ from `harness.toml`.
        config: The configuration.
        server: Where the store lives, if it is not embedded.
        hang_s: Longest wait for anything; a learner of several processes compiles in each at every start.
    """

    directory: Path
    overrides: tuple[str, ...] = ()
    config: Path = CONFIG
    server: Server | None = None
    hang_s: float = 240.0
    published: list[PolicyVersion] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)
    train: subprocess.Popen[bytes] | None = None

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.directory / "kills"

    @property
    def crash_plan(self) -> Path:
        """What the learner reads to know where to die."""
        return self.directory / "crash-plan"

    def __enter__(self) -> Harness:
        self._began_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self.train is not None and self.train.poll() is None:
            self.kill("all")

    def start(self) -> None:
        """Start, or resume, the training."""
        with (self.directory / "train.log").open("ab") as log:
            self.train = subprocess.Popen(
                [*forebay("train"), str(self.config), f"run.directory={self.directory}", *self.overrides],
                cwd=ROOT,
                env=environment() | {PLAN_VARIABLE: str(self.crash_plan)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the living processes of the run by role."""
        assert self.train is not None
        found: dict[str, list[psutil.Process]] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.train.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    words = child.cmdline()
                    role = next((COMMANDS[word] for word in words[2:5] if word in COMMANDS), None)
                    if role is not None:
                        found.setdefault(role, []).append(child)
        return found

    def member(self, number: int) -> psutil.Process | None:
        """Return one process of the learner, if it runs."""
        for process in self.processes().get("learner", []):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                words = process.cmdline()
                if words[words.index("--process-id") + 1] == str(number):
                    return process
        return None

    def step(self) -> int:
        """Return the newest step of the metrics; 0 before the first."""
        path = self.run / "metrics.jsonl"
        lines = [line["step"] for line in read_metrics(path)] if path.exists() else []
        return lines[-1] if lines else 0

    def look(self) -> None:
        """Note the newest published version."""
        version = read_marker(self.run / "weights")
        if version is not None and self.published[-1:] != [version]:
            self.published.append(version)

    def wait_until(self, reached: Any, what: str) -> bool:
        """Wait for a condition; return False if the training ended first, raise if neither happens."""
        assert self.train is not None
        deadline_s = time.monotonic() + self.hang_s
        while not reached():
            self.look()
            if self.train.poll() is not None:
                return False
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what} not within {self.hang_s} s; {self.tail()}")
            time.sleep(_POLL_S)
        return True

    def carry_out(self, kill: Kill) -> None:
        """Wait for the moment of a kill, and kill.

        Raises:
            TimeoutError: The training makes no progress.
        """
        if kill.point is not None:
            self._kill_at_point(kill)
            return
        if not self.wait_until(lambda: self.step() >= kill.step, f"step {kill.step}"):
            return
        time.sleep(kill.delay_s)
        self.kill(kill.role, kill.member)
        self._note(kill)
        if kill.again_s is not None:
            time.sleep(kill.again_s)
            self.kill(kill.role, kill.member)
            self._note(dataclasses.replace(kill, delay_s=kill.again_s, again_s=None))

    def _kill_at_point(self, kill: Kill) -> None:
        self.crash_plan.write_text(f"{kill.point} {0 if kill.point in RESUMING else kill.step}")
        if not self.wait_until(lambda: self.step() >= kill.step - 1, f"step {kill.step - 1}"):
            return
        if kill.point in RESUMING:
            self.kill("learner")
            self._note(dataclasses.replace(kill, point=None))
        deadline_s = time.monotonic() + self.hang_s / 4
        self.wait_until(
            lambda: not self.crash_plan.exists() or time.monotonic() > deadline_s, kill.point or ""
        )
        if self.crash_plan.exists():  # nothing to replay, say
            self.crash_plan.unlink(missing_ok=True)
            return
        self._note(kill)

    def kill(self, role: Role, member: int | None = None) -> None:
        """Kill -9 every process of a role, or one process of the learner."""
        if role == "server":
            assert self.server is not None
            self.server.restart()
            return
        if member is not None:
            process = self.member(member)
            if process is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return
        found = self.processes()
        if role != "all":
            for process in found.get(role, []):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return
        assert self.train is not None
        self.train.kill()
        self.train.wait()
        everyone = [process for processes in found.values() for process in processes]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everyone, timeout=30.0)

    def run_through(self, kills: tuple[Kill, ...], overrides: Iterator[tuple[str, ...]] | None = None) -> int:
        """Train to the end under a plan of kills; return the exit code of the training.

        Args:
            kills: Carried out in this order.
            overrides: Of each start after everything died; None leaves them as they are.
        """
        self.start()
        for kill in kills:
            self.carry_out(kill)
            assert self.train is not None
            if self.train.poll() == -signal.SIGKILL:
                self.overrides = next(overrides) if overrides else self.overrides
                self.start()
        self.wait_until(lambda: False, "the end")
        assert self.train is not None
        return self.train.wait()

    def tail(self) -> str:
        """Return the last lines of every log."""
        logs = [self.directory / "train.log", *sorted((self.run / "logs").glob("*.log"))]
        return "\n".join(
            f"{log.name}: {line}"
            for log in logs
            if log.exists()
            for line in log.read_text(errors="replace").splitlines()[-8:]
        )

    def _note(self, kill: Kill) -> None:
        self.done.append(
            {
                "role": kill.role,
                "member": kill.member,
                "point": kill.point,
                "planned_step": kill.step,
                "step": self.step(),
                "time_s": round(time.monotonic() - self._began_s, 1),
            }
        )


def forebay(*arguments: str) -> list[str]:
    """Return the command line of a forebay command."""
    return [sys.executable, "-m", "forebay", *arguments]


def environment() -> dict[str, str]:
    """Return the environment of the processes: one device, the repository importable."""
    without = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", PLAN_VARIABLE)}
    cache = str(ROOT / ".cache" / "jax")
    return {"JAX_COMPILATION_CACHE_DIR": cache} | without | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a forebay command to its end."""
    return subprocess.run(
        forebay(*arguments),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def account(harness: Harness) -> tuple[dict[str, Any], list[str]]:
    """Account for everything that a finished run did; return totals, and what is wrong."""
    run = join_run(harness.run)
    store = run.open_store()
    try:
        stats = store.stats()
        wrong = [f"audit: {problem}" for problem in store.audit()]
        journal = store.journal()
        wrong += check_journal(store, journal, run.config.staleness.max_staleness)
        num_groups = len(list(store.scan()))
    finally:
        store.close()
    lines = surviving_lines(read_metrics(run.layout.metrics))
    wrong += check_lines(lines, journal, run.config.learner.steps, run.config.learner.keep_consumed)
    summary = read_summary(run.layout.summary, RunSummary)
    counters = stats.counters
    left = sum(n for name, n in counters.items() if name.startswith(("rejected.", "dropped.")))
    left -= counters.get("rejected.foreign", 0) + counters.get("rejected.too_large", 0)
    left += counters.get("committed", 0)
    totals = {
        "steps": summary.steps,
        "incarnations": stats.incarnation + 1,
        "dispatched": stats.next_serial,
        "accepted": counters.get("trajectories.accepted", 0),
        "trained": summary.trained,
        "discarded": summary.discarded,
        "stored": stats.stored_trajectories,
        "lost": count_lost(stats),
        "repeated": count_repeated(lines),
        "replayed_batches": counters.get("replayed", 0),
        "published_seen": len(harness.published),
    }
    expectations = {
        "steps": (summary.steps, run.config.learner.steps),
        "lost": (totals["lost"], 0),
        "lost in the summary": (summary.lost, 0),
        "repeated": (totals["repeated"], 0),
        "groups accounted for": (num_groups + left, stats.next_serial),
        "trajectories recorded": (counters.get("trajectories.recorded", 0), summary.trained),
        "order of published versions": (harness.published, sorted(set(harness.published))),
        "published last": (read_marker(run.layout.weights), PolicyVersion(stats.incarnation, summary.steps)),
    }
    wrong += [f"{what}: {got}, not {right}" for what, (got, right) in expectations.items() if got != right]
    refused = [line for line in read_logs(harness, "generator") if "refused weights" in line]
    return totals, wrong + refused


def check_journal(store: RuleStore, journal: tuple[JournalEntry, ...], max_staleness: int) -> Iterator[str]:
    """Yield what is wrong with consumed batches: a group twice, versions that go back, a token too old."""
    seen = Counter(group_id for entry in journal for group_id in entry.group_ids)
    yield from (f"{group_id} was consumed {count} times" for group_id, count in seen.items() if count > 1)
    for entry in journal:
        for group_id in entry.group_ids:
            for trajectory in store.read_group(group_id).trajectories:
                for sequence in trajectory.sequences:
                    versions = [span.version for span in sequence.version_spans]
                    if versions != sorted(versions):
                        yield f"{trajectory.trajectory_id} was sampled by versions that go back: {versions}"
                    oldest = max((staleness_of(v, entry.now, entry.forks) for v in versions), default=0)
                    if oldest > max_staleness:
                        yield f"{trajectory.trajectory_id} was {oldest} versions old at step {entry.step}"


def check_lines(
    lines: list[dict[str, Any]], journal: tuple[JournalEntry, ...], steps: int, whole: bool
) -> Iterator[str]:
    """Yield where the metrics of the surviving history and the journal contradict one another."""
    if [line["step"] for line in lines] != list(range(1, steps + 1)):
        yield f"the surviving history has holes: {[line['step'] for line in lines]}"
    consumed = {entry.step: " ".join(entry.group_ids) for entry in journal}
    trained = {line["step"]: line["groups"] for line in lines}
    if whole and consumed != trained:
        different = sorted(step for step in trained if trained[step] != consumed.get(step))
        yield f"journal and metrics differ at steps {different}"
    for step in consumed.keys() & trained.keys():
        if consumed[step] != trained[step]:
            yield f"step {step} trained {trained[step]}, but the journal says {consumed[step]}"


def read_logs(harness: Harness, role: str) -> list[str]:
    """Return the lines of a role's logs."""
    logs = sorted((harness.run / "logs").glob(f"{role}*.log"))
    return [line for log in logs for line in log.read_text(errors="replace").splitlines()]
