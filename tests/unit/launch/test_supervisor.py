from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError, PeerFailedError
from forebay.launch import LaunchSettings, ProcessSpec, Supervisor, divide_cpus

FAST = LaunchSettings(restart_backoff_s=0.01, stop_grace_s=5.0, max_restarts=2)


def python(name: str, code: str, leads: bool = False) -> ProcessSpec:
    return ProcessSpec(name=name, argv=(sys.executable, "-c", code), leads=leads)


def supervise(specs: list[ProcessSpec], logs: Path) -> tuple[Supervisor, int]:
    supervisor = Supervisor(specs, logs, FAST, SystemClock())
    return supervisor, supervisor.run()


def test_the_leading_process_ends_the_run_and_the_others(tmp_path: Path) -> None:
    specs = [python("learner", "print('done')", leads=True), python("actor", "import time; time.sleep(600)")]
    supervisor, code = supervise(specs, tmp_path)
    assert code == 0
    assert supervisor.pids() == {}


def test_c39_a_peer_that_keeps_dying_ends_the_run_with_the_first_traceback(tmp_path: Path) -> None:
    specs = [
        python("learner", "import time; time.sleep(600)", leads=True),
        python("actor", "raise RuntimeError('tool vanished')"),
    ]
    with pytest.raises(PeerFailedError, match="actor failed 3 times") as caught:
        supervise(specs, tmp_path)
    assert "RuntimeError: tool vanished" in str(caught.value)
    assert caught.value.exit_code == 4
    assert (tmp_path / "actor.log").read_text().count("tool vanished") >= 3


def test_a_killed_peer_is_restarted(tmp_path: Path) -> None:
    marker = tmp_path / "second"
    learner = f"import time, pathlib\nwhile not pathlib.Path({str(marker)!r}).exists(): time.sleep(0.02)"
    actor = (
        f"import os, pathlib, signal, time\np = pathlib.Path({str(tmp_path / 'first')!r})\n"
        f"first = not p.exists(); p.touch()\n"
        f"if first: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"pathlib.Path({str(marker)!r}).touch(); time.sleep(600)"
    )
    supervisor, code = supervise([python("learner", learner, leads=True), python("actor", actor)], tmp_path)
    assert code == 0
    assert supervisor.num_restarts == 1
    assert supervisor.first_cause is not None and "SIGKILL" in supervisor.first_cause


@pytest.mark.parametrize("code", [2, 3])
def test_configuration_and_progress_errors_are_not_retried(tmp_path: Path, code: int) -> None:
    supervisor, end = supervise([python("learner", f"raise SystemExit({code})", leads=True)], tmp_path)
    assert (end, supervisor.num_restarts) == (code, 0)


def test_interrupt_stops_everything_and_gives_130(tmp_path: Path) -> None:
    supervisor = Supervisor(
        [python("learner", "import time; time.sleep(600)", leads=True)], tmp_path, FAST, SystemClock()
    )

    def interrupt() -> None:
        while not supervisor.pids():
            time.sleep(0.01)
        supervisor.request_stop(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert supervisor.run() == 130
    assert supervisor.pids() == {}


def test_cores_are_divided_and_unknown_ones_refused() -> None:
    assert divide_cpus([0]) == ((0,), (0,))
    assert divide_cpus([0, 1, 2, 3]) == ((0, 1), (2, 3))
    assert divide_cpus([0, 1], learner=[1]) == ((1,), (0,))
    with pytest.raises(ConfigError, match="core"):
        divide_cpus([0, 1], learner=[5])
