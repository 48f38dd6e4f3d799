"""Runs the processes of one training on one machine, restarts those that die, and ends with the first cause."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from forebay.clock import Clock
from forebay.errors import PeerFailedError
from forebay.launch.placement import CPUS_VARIABLE, PARENT_VARIABLE
from forebay.launch.settings import LaunchSettings

_POLL_S = 0.1
_TAIL_LINES = 40
_FATAL_CODES = (2, 3)


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run.

    Args:
        name: Unique; names the log file.
        argv: Command line.
        cpus: Cores it may use.
        env: Variables added to the supervisor's own.
        leads: Its end with code 0 is the end of the run.
    """

    name: str
    argv: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = {}
    leads: bool = False


class Child:
    """A supervised process: how often it was started, when, and the last lines it wrote."""

    def __init__(self, spec: ProcessSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.process: subprocess.Popen[str] | None = None
        self.restarts = 0
        self.started_s = 0.0
        self.restart_at_s: float | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def start(self, now_s: float) -> None:
        """Start the process; its output goes to its log file."""
        env = os.environ | dict(self.spec.env) | {PARENT_VARIABLE: str(os.getpid())}
        if self.spec.cpus:
            env[CPUS_VARIABLE] = ",".join(map(str, self.spec.cpus))
        self.started_s, self.restart_at_s = now_s, None
        # A session of its own keeps a terminal's Ctrl-C with the supervisor, which stops its children in order.
        self.process = subprocess.Popen(
            self.spec.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._copy_output, args=(self.process.stdout,), daemon=True).start()

    def _copy_output(self, stream: IO[str]) -> None:
        with self.log_path.open("a", encoding="utf-8") as log, stream:
            for line in stream:
                self.tail.append(line.rstrip("\n"))
                log.write(line)
                log.flush()

    def cause(self, code: int) -> str:
        """Describe an exit: signal or code, and the error that the process printed last."""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        lines = [line for line in self.tail if line.strip()]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
        shown = lines[starts[-1] :] if starts else lines[-3:]
        return f"{self.spec.name} {how}" + (": " + "\n".join(shown) if shown else "")


class Supervisor:
    """Keeps processes alive until the leading one finishes.

    Consumes: the ends of its children. Waits for: the leading process. Unblocked by: any end, or a signal to stop.
    Produces: an exit code, and on failure the first cause.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        log_directory: Path,
        settings: LaunchSettings,
        clock: Clock,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._children = [Child(spec, log_directory / f"{spec.name}.log") for spec in specs]
        self._settings = settings
        self._clock = clock
        self._on_tick = on_tick
        self._stop_signal: int | None = None
        self.first_cause: str | None = None
        self.num_restarts = 0

    def pids(self) -> dict[str, int]:
        """Return the process id of every living child, by name."""
        return {c.spec.name: c.process.pid for c in self._children if c.process and c.process.poll() is None}

    def request_stop(self, number: int = signal.SIGTERM) -> None:
        """Ask for an orderly end; safe in a signal handler."""
        self._stop_signal = number

    def run(self) -> int:
        """Supervise until the leading process ends or a stop is requested.

        Returns:
            0 when done or stopped by SIGTERM, 130 after SIGINT, 2 or 3 if a process ended so.

        Raises:
            PeerFailedError: A process failed more often in a row than allowed.
        """
        try:
            for child in self._children:
                child.start(self._clock.monotonic_s())
            while self._stop_signal is None:
                code = self._check_all()
                if code is not None:
                    return code
                self._on_tick()
                self._clock.sleep(_POLL_S)
            return 130 if self._stop_signal == signal.SIGINT else 0
        finally:
            self._stop_all()
            self._on_tick()

    def _check_all(self) -> int | None:
        now_s = self._clock.monotonic_s()
        for child in self._children:
            if child.restart_at_s is not None:
                if now_s >= child.restart_at_s:
                    child.start(now_s)
                continue
            assert child.process is not None
            code = child.process.poll()
            if code is not None:
                end = self._ended(child, code, now_s)
                if end is not None:
                    return end
        return None

    def _ended(self, child: Child, code: int, now_s: float) -> int | None:
        if child.spec.leads and code == 0:
            return 0
        cause = child.cause(code)
        self.first_cause = self.first_cause or cause
        if code in _FATAL_CODES:
            self.first_cause = cause
            return code
        if now_s - child.started_s >= self._settings.stable_s:
            child.restarts = 0
        if child.restarts >= self._settings.max_restarts:
            raise PeerFailedError(
                f"{child.spec.name} failed {child.restarts + 1} times in a row; the first cause was: {self.first_cause}",
                limit=f"launch.max_restarts={self._settings.max_restarts}",
                remedy=f"See {child.log_path}.",
            )
        backoff_s = min(
            self._settings.restart_backoff_s * 2**child.restarts, self._settings.restart_backoff_max_s
        )
        child.restarts += 1
        self.num_restarts += 1
        child.restart_at_s = now_s + backoff_s
        return None

    def _stop_all(self) -> None:
        """Stop the leading processes first: they save their state while the others still serve them."""
        for group in (True, False):
            alive = [
                c.process
                for c in self._children
                if c.spec.leads is group and c.process is not None and c.process.poll() is None
            ]
            for process in alive:
                process.terminate()
            deadline_s = self._clock.monotonic_s() + self._settings.stop_grace_s
            while any(p.poll() is None for p in alive) and self._clock.monotonic_s() < deadline_s:
                self._clock.sleep(_POLL_S / 2)
            for process in alive:
                if process.poll() is None:
                    process.kill()
                process.wait()
