"""What a process of an audit that needs JAX is asked, and what it answers: JSON, one message a line."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Literal

import msgspec

from forebay.errors import ConfigError, PeerFailedError
from forebay.launch.placement import CPUS_VARIABLE, PARENT_VARIABLE, with_huge_pages
from forebay.planner.distribution import Distribution
from forebay.planner.profile_records import LearnerBucket, LearnerLevel

_END_S = 5.0
# Longer than any train step compiles; a device that another process holds is waited for without a word.
_PATIENCE_S: Final = 1800.0
_CHUNK_BYTES: Final = 65_536


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted.

    Args:
        kind: `weights` publishes the parameters that the run begins with; `learner` times its steps.
        run: Its directory.
        limit_s: Time to measure, after compiling.
        lengths: Tokens of each trajectory of a batch, and how many of them were sampled.
    """

    kind: Literal["weights", "learner"]
    run: str
    limit_s: float = 0.0
    lengths: tuple[tuple[int, int], ...] = ()


class Said(msgspec.Struct, frozen=True, tag="said"):
    """What the process is at."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why it ends without a result, and with which exit code."""

    text: str
    code: int


class LearnerFound(msgspec.Struct, frozen=True, kw_only=True, tag="learner"):
    """What has been measured of the learner so far.

    Args:
        device: What computed.
        compile_s: Time to compile.
        num_programs: How many programs.
        levels: By ascending number of trajectories.
        buckets: By shape.
        apply_s: Of the optimizer; None if not measured yet.
        overhead_s: Around a step of the whole batch.
        full_tokens_per_s: What goodput is a fraction of.
    """

    device: str
    compile_s: float
    num_programs: int
    levels: tuple[LearnerLevel, ...] = ()
    buckets: tuple[LearnerBucket, ...] = ()
    apply_s: Distribution | None = None
    overhead_s: Distribution | None = None
    full_tokens_per_s: float | None = None


Message = Said | Failed | LearnerFound


@contextmanager
def started(job: Job, cpus: tuple[int, ...]) -> Iterator[Iterator[Message]]:
    """Start a process for a job and yield its messages; it is killed if nobody reads on.

    Args:
        job: What is wanted.
        cpus: Cores that it may use.

    Raises:
        ConfigError: It says that a setting cannot work.
        PeerFailedError: It failed otherwise, or says nothing any more.
    """
    # Its own session keeps Ctrl-C away from it: what it has measured is kept, then it is ended here.
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay.cli.audit_child"],
        env=environment_of(os.environ, cpus),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield messages_of(process, job, _PATIENCE_S + job.limit_s)
    finally:
        process.kill()
        process.wait(_END_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def environment_of(environ: Mapping[str, str], cpus: tuple[int, ...]) -> dict[str, str]:
    """Return the environment of a job's process: that of a learner which `forebay train` starts.

    Args:
        environ: That of this process.
        cpus: Cores that it may use.
    """
    placed = {PARENT_VARIABLE: str(os.getpid()), CPUS_VARIABLE: ",".join(map(str, cpus))}
    return {**environ, **placed, **with_huge_pages(environ)}


def messages_of(process: subprocess.Popen[bytes], job: Job, patience_s: float) -> Iterator[Message]:
    """Give a process its job and yield what it says of it, until it ends.

    Waits for: the process. Unblocked by: its messages, its end, and `patience_s`.

    Args:
        process: Its standard input and output are pipes.
        job: What is wanted.
        patience_s: Longest time without a word, and until it has ended after the last one.

    Raises:
        ConfigError: It says that a setting cannot work.
        PeerFailedError: It failed otherwise, or says nothing any more.
    """
    assert process.stdin is not None
    # One that has died already says why with its exit code.
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(job))
    with suppress(BrokenPipeError):
        process.stdin.close()
    who = f"the process that measures the {job.kind}"
    for line in _lines(process, who, patience_s):
        message = msgspec.json.decode(line, type=Message)
        if isinstance(message, Failed):
            kind = ConfigError if message.code == ConfigError.exit_code else PeerFailedError
            raise kind(message.text)
        yield message
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        raise _silent(who, patience_s) from None
    if code:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        raise PeerFailedError(f"{who} {how}", remedy="Not enough memory, or see what it wrote above.")


def _lines(process: subprocess.Popen[bytes], who: str, patience_s: float) -> Iterator[bytes]:
    assert process.stdout is not None
    begun = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(patience_s):
                raise _silent(who, patience_s)
            chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
            if not chunk:
                return
            *whole, begun = (begun + chunk).split(b"\n")
            yield from whole


def _silent(who: str, patience_s: float) -> PeerFailedError:
    return PeerFailedError(
        f"{who} says nothing any more",
        limit=f"{patience_s:g} s",
        remedy="Another process may hold the device; or see what it wrote above.",
    )
