"""The compiler as a judge: jobs in processes of their own, with progress, a time limit and a memory."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

import forebay
from forebay.clock import Clock
from forebay.errors import ConfigError, PeerFailedError
from forebay.learner.fit.chips import Topology
from forebay.learner.fit.jobs import Failure, Job, Message, Phase, Program

Tell = Callable[[str], None]
_CHILD: Final = "forebay.learner.fit.child"
_COMPILED_PACKAGES: Final = ("models", "learner", "objectives")
_OF_FIT: Final = ("child.py", "hlo.py", "estimates.py")
_BEAT_S: Final = 30.0
_LAST_WORDS: Final = 2000
_WITHOUT: Final = (
    "Install it with `pip install libtpu`, in the version that `jax[tpu]` names (the `tpu` extra does), or "
    "pass --analytic for arithmetic only."
)


class Compiler:
    """Compiles programs, each at most once: results are kept in a directory.

    Args:
        directory: Of the results; made when there is one.
        clock: Times progress and the limit.
        told: Gets a line of progress now and then.
        limit_s: Longest time of one job.
    """

    def __init__(self, directory: Path, clock: Clock, told: Tell, limit_s: float) -> None:
        self._directory, self._clock, self._told, self._limit_s = directory, clock, told, limit_s

    def compile(self, job: Job, topology: Topology) -> dict[str, Program]:
        """Return what the compiler says of every program of a job.

        Raises:
            ConfigError: Nothing here compiles for the topology.
            PeerFailedError: The process failed, or took too long.
        """
        found = {name: self._kept(job, name) for name in job.programs}
        missing = tuple(name for name in job.programs if found[name] is None)
        if missing:
            check_compiler(topology)
            for program in self._run(msgspec.structs.replace(job, programs=missing), topology):
                # At once: what comes next may fail, or be stopped.
                self._keep(job, program)
                found[program.name] = program
        programs = {name: program for name, program in found.items() if program is not None}
        if len(programs) < len(found):
            raise PeerFailedError(f"the compiler said nothing of {', '.join(found.keys() - programs.keys())}")
        return programs

    def _kept(self, job: Job, name: str) -> Program | None:
        try:
            return msgspec.json.decode(self._path(job, name).read_bytes(), type=Program)
        except (OSError, msgspec.DecodeError):
            return None

    def _keep(self, job: Job, program: Program) -> None:
        path = self._path(job, program.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(program))
        Path(file.name).replace(path)

    def _path(self, job: Job, name: str) -> Path:
        return self._directory / f"{_key(job.only(name))}.json"

    def _run(self, job: Job, topology: Topology) -> Iterator[Program]:
        with tempfile.TemporaryFile() as said, _start(topology, said) as process:
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(msgspec.json.encode(job))
                yield from self._listen(process)
                if process.wait():
                    raise PeerFailedError(f"the compiler's process failed: {_last_words(said)}")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _listen(self, process: subprocess.Popen[bytes]) -> Iterator[Program]:
        began_s = self._clock.monotonic_s()
        phase, told_s = "starting the compiler", began_s
        for line in self._lines(process, began_s):
            message = msgspec.json.decode(line, type=Message) if line else Phase(phase)
            now_s = self._clock.monotonic_s()
            if isinstance(message, Failure):
                raise PeerFailedError(message.what)
            if isinstance(message, Program):
                yield message
            elif message.what != phase or now_s - told_s > _BEAT_S:
                phase, told_s = message.what, now_s
                self._told(f"[{now_s - began_s:4.0f} s] {phase}")

    def _lines(self, process: subprocess.Popen[bytes], began_s: float) -> Iterator[bytes]:
        """Yield lines as they come, and nothing each second that none comes; until the process is done."""
        assert process.stdout is not None
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (elapsed_s := self._clock.monotonic_s() - began_s) <= self._limit_s:
                if not selector.select(1.0):
                    yield b""
                    continue
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        raise PeerFailedError(
            "the compiler took too long",
            got=f"{elapsed_s:.0f} s",
            limit=f"{self._limit_s:.0f} s",
            remedy="Raise --limit-s, or pass a smaller model or topology.",
        )


def check_compiler(topology: Topology) -> None:
    """Refuse a topology that nothing here compiles for.

    Raises:
        ConfigError: The compiler is not installed, or there is none.
    """
    if topology.chip.platform == "gpu":
        raise ConfigError(
            "programs for GPUs are compiled where one is", got=topology.name, remedy="Pass --analytic."
        )
    if importlib.util.find_spec("jax") is None:
        raise ConfigError(
            "compiling needs JAX, which is not installed",
            remedy="Install the `learner` extra, or pass --analytic for arithmetic only.",
        )
    if topology.chip.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise ConfigError("the compiler for TPUs, libtpu, is not installed", remedy=_WITHOUT)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on; what is not installed is left out."""
    found = {"forebay": forebay.__version__}
    for name in ("jax", "jaxlib", "libtpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def cache_directory() -> Path:
    """Return where results are kept between calls."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "forebay" / "fit"


def _key(job: Job) -> str:
    """Return a name that changes with all that a result depends on."""
    parts = [msgspec.json.encode(job, order="deterministic"), msgspec.json.encode(versions())]
    root = Path(forebay.__file__).parent
    for package in _COMPILED_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            # Of fit itself, only what compiles and reads the text counts.
            if path.parent.name != "fit" or path.name in _OF_FIT:
                parts += [str(path.relative_to(root)).encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _start(topology: Topology, said: IO[bytes]) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    if topology.chip.platform == "cpu":
        environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={topology.num_devices}"
    return subprocess.Popen(
        [sys.executable, "-m", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        env=environ,
        start_new_session=True,
    )


def _last_words(said: IO[bytes]) -> str:
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - _LAST_WORDS))
    text = said.read().decode(errors="replace").strip()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else "it said nothing"
