"""A process of an audit: its messages, its silence and its end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from forebay.cli.audit_jobs import Job, Said, environment_of, messages_of
from forebay.errors import ConfigError, PeerFailedError

JOB = Job(kind="learner", run="runs/a")
PATIENCE_S = 60.0
AUDIT_CHILD = """
import subprocess
from forebay.cli import audit_child
from forebay.cli.audit_jobs import Said

def work(job):
    print("a plug-in says hello")
    subprocess.run(["echo", "a banner"])
    yield Said(job.run)

audit_child.work = work
audit_child.main()
"""


@contextlib.contextmanager
def process_of(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def said(text: str) -> str:
    return repr(msgspec.json.encode(Said(text)))


def test_one_that_hangs_is_named_with_the_limit() -> None:
    code = "import time; time.sleep(1000)"
    with process_of(code) as process, pytest.raises(PeerFailedError) as refused:
        list(messages_of(process, JOB, 0.2))
    assert str(refused.value).startswith(
        "the process that measures the learner says nothing any more (limit 0.2 s). "
    )


def test_one_that_has_said_all_and_does_not_end_is_not_waited_for() -> None:
    code = "import os, time; os.close(1); time.sleep(1000)"
    with process_of(code) as process, pytest.raises(PeerFailedError, match="says nothing any more"):
        list(messages_of(process, JOB, 5.0))


def test_messages_may_come_in_pieces_and_together() -> None:
    both = f"{said('one')} + b'\\n' + {said('two')} + b'\\n'"
    code = f"""
import os, sys
sys.stdin.read()
for byte in {both}:
    os.write(1, bytes([byte]))
os.write(1, {both})
"""
    with process_of(code) as process:
        found = list(messages_of(process, JOB, PATIENCE_S))
    assert found == [Said("one"), Said("two")] * 2


def test_one_that_dies_before_it_reads_its_job_is_told_by_its_exit_code() -> None:
    longer_than_a_pipe_holds = Job(kind="weights", run="x" * 1_000_000)
    with process_of("raise SystemExit(7)") as process:
        process.wait(PATIENCE_S)
        with pytest.raises(PeerFailedError, match="that measures the weights exited with code 7"):
            list(messages_of(process, longer_than_a_pipe_holds, PATIENCE_S))


def test_what_else_it_prints_goes_to_standard_error() -> None:
    with process_of(AUDIT_CHILD) as process:
        assert list(messages_of(process, JOB, PATIENCE_S)) == [Said("runs/a")]
        assert process.stderr is not None
        printed = process.stderr.read().decode()
    assert "a plug-in says hello" in printed and "a banner" in printed


def test_a_setting_that_cannot_work_is_one_here_too() -> None:
    code = 'import sys; sys.stdin.read(); print(\'{"type":"failed","text":"no device","code":2}\')'
    with process_of(code) as process, pytest.raises(ConfigError, match="no device"):
        list(messages_of(process, JOB, PATIENCE_S))


def test_it_has_the_memory_and_the_cores_of_a_learner_that_is_started() -> None:
    found = environment_of({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2", "LANG": "C"}, (1, 3))
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"
    assert (found["FOREBAY_CPUS"], found["LANG"]) == ("1,3", "C")
