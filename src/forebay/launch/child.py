"""One supervised process: started on its cores, its output copied to a log, explained when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from forebay.launch.placement import CPUS_VARIABLE, PARENT_VARIABLE

_TAIL_LINES = 40
_SHOWN_LINES = 3
_LAST_OUTPUT_S = 1.0
_ERROR = "error: "


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run.

    Args:
        name: Unique; names the log file.
        argv: Command line.
        cpus: Cores it may use.
        env: Variables added to the supervisor's own.
        leads: Its end with code 0 is the end of the run.
        gang: Processes of one gang live and die together; empty for one that stands alone.
    """

    name: str
    argv: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = {}
    leads: bool = False
    gang: str = ""


class Child:
    """A supervised process: how often it was started, when, and the last lines it wrote.

    Args:
        spec: What is started.
        log_path: Where its output is appended.
        inherited: File descriptors that it keeps open, the run's lock for instance.
    """

    def __init__(self, spec: ProcessSpec, log_path: Path, inherited: Sequence[int] = ()) -> None:
        self.spec = spec
        self.log_path = log_path
        self.process: subprocess.Popen[str] | None = None
        self.restarts = 0
        self.started_s = 0.0
        self.restart_at_s: float | None = None
        self._inherited = tuple(inherited)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._copier: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def start(self, now_s: float) -> None:
        """Start the process; its output goes to its log file."""
        env = os.environ | dict(self.spec.env) | {PARENT_VARIABLE: str(os.getpid())}
        if self.spec.cpus:
            env[CPUS_VARIABLE] = ",".join(map(str, self.spec.cpus))
        self.started_s, self.restart_at_s = now_s, None
        self._tail = deque(maxlen=_TAIL_LINES)
        # Its own session keeps a terminal's Ctrl-C with the supervisor, which stops its children in order.
        self.process = subprocess.Popen(
            self.spec.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=self._inherited,
        )
        assert self.process.stdout is not None
        self._copier = threading.Thread(
            target=_copy, args=(self.process.stdout, self._tail, self.log_path), daemon=True
        )
        self._copier.start()

    def stop(self, grace_s: float) -> None:
        """Ask the process to end, and kill it if it does not within `grace_s`."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def error(self) -> str | None:
        """Return the line in which the ended process named its error, if it did."""
        self._finish_output()
        errors = [line.removeprefix(_ERROR) for line in self._tail if line.startswith(_ERROR)]
        return errors[-1] if errors else None

    def cause(self, code: int) -> str:
        """Describe an exit: signal or code, and the error or traceback that the process printed last."""
        self._finish_output()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        lines = [line for line in self._tail if line.strip()]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
        error = self.error()
        if error is not None:
            return f"{self.spec.name} {how}: {error}"
        if code == -signal.SIGKILL:
            # What it wrote last has nothing to do with it.
            return f"{self.spec.name} {how}, by the system if memory ran out: dmesg says so"
        shown = lines[starts[-1] :] if starts else lines[-_SHOWN_LINES:]
        return f"{self.spec.name} {how}" + (": " + "\n".join(shown) if shown else "")

    def _finish_output(self) -> None:
        # Bounded: something that outlived the process may still hold the pipe.
        if self._copier is not None:
            self._copier.join(_LAST_OUTPUT_S)


def _copy(stream: IO[str], tail: deque[str], log_path: Path) -> None:
    """Read until the end whatever happens to the log: a full pipe would stop the process."""
    with stream:
        for line in stream:
            tail.append(line.rstrip("\n"))
            try:
                with log_path.open("a", encoding="utf-8") as log:
                    log.write(line)
            except OSError as error:
                tail.append(f"cannot write {log_path}: {error.strerror}")
