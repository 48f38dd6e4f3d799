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


@pytest.mark.parametrize("trained", [1, 0])
def test_a_learner_that_fails_at_the_same_step_fails_in_a_row_however_long_it_lives(
    tmp_path: Path, trained: int
) -> None:
    """One that trains a new step in each life is started again as often as it takes: here five times."""
    lives = tmp_path / "lives"
    code = (
        f"import time\nopen({str(lives)!r}, 'a').write('x')\ntime.sleep(0.05)\n"
        f"raise SystemExit(0 if len(open({str(lives)!r}).read()) == 6 else 4)"
    )
    supervisor = Supervisor(
        [python("learner", code, leads=True)], tmp_path,
        FAST.model_copy(update={"stable_s": 0.01, "max_restarts": 2}), SystemClock(),
        newest_step=lambda: trained * len(lives.read_text()),
    )  # fmt: skip
    if trained:
        assert supervisor.run() == 0
        return
    with pytest.raises(PeerFailedError, match="learner failed 3 times in a row"):
        supervisor.run()


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


def stop_when_ready(supervisor: Supervisor, markers: list[Path], *numbers: int) -> None:
    """Send signals from another thread, the first one when all markers are there."""

    def send() -> None:
        while not all(marker.exists() for marker in markers):
            time.sleep(0.01)
        for number in numbers:
            supervisor.request_stop(number)

    threading.Thread(target=send).start()


def recorder(name: str, record: Path, leads: bool = False) -> ProcessSpec:
    """A process that marks when it is ready, and writes its name down when it is asked to stop."""
    touch = f"pathlib.Path({str(record.with_name(name))!r}).touch()"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def stop(*_): open({str(record)!r}, 'a').write('{name} '); sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, stop)\n{touch}\ntime.sleep(600)"
    )
    return python(name, code, leads)


def test_sigterm_stops_the_learner_before_what_serves_it_and_gives_0(tmp_path: Path) -> None:
    record = tmp_path / "record"
    names = ["generator", "learner", "actor"]
    specs = [recorder(name, record, leads=name == "learner") for name in names]
    supervisor = Supervisor(specs, tmp_path, FAST, SystemClock())
    stop_when_ready(supervisor, [tmp_path / name for name in names], signal.SIGTERM)
    assert supervisor.run() == 0
    first, *others = record.read_text().split()
    assert (first, sorted(others)) == ("learner", ["actor", "generator"])
    assert supervisor.pids() == {}


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    lines: list[str] = []
    patient = FAST.model_copy(update={"stop_grace_s": 600.0})
    supervisor = Supervisor(
        [python("learner", code, leads=True)], tmp_path, patient, SystemClock(), report=lines.append
    )
    stop_when_ready(supervisor, [ready], signal.SIGINT, signal.SIGINT)
    assert supervisor.run() == 130
    assert lines == [
        "stopping: learner ends its step and saves, within 600.0 s; Ctrl-C again ends it at once",
        "learner was killed before it had saved its state, as asked; the run goes on from its last "
        "checkpoint. How long it gets: launch.stop_grace_s=600, launch.stop_grace_max_s=900.",
    ]


def test_a_learner_with_long_steps_gets_the_time_to_end_one_and_to_save(tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def stop(*_): time.sleep(0.5); pathlib.Path({str(saved)!r}).touch(); sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, stop)\npathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    lines: list[str] = []
    hasty = FAST.model_copy(update={"stop_grace_s": 0.01})
    supervisor = Supervisor(
        [python("learner", code, leads=True)], tmp_path, hasty, SystemClock(),
        report=lines.append, step_s=lambda: (100.0, 50.0),
    )  # fmt: skip
    stop_when_ready(supervisor, [ready], signal.SIGTERM)
    assert supervisor.run() == 0
    assert saved.exists()
    assert lines == [
        "stopping: learner ends its step and saves, within 300.0 s (its last steps took 100.0, 50.0 s); "
        "Ctrl-C again ends it at once"
    ]


def test_a_learner_that_takes_longer_is_killed_and_the_settings_are_named(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    lines: list[str] = []
    hasty = FAST.model_copy(update={"stop_grace_s": 0.25, "stop_grace_max_s": 0.5})
    supervisor = Supervisor(
        [python("learner", code, leads=True)], tmp_path, hasty, SystemClock(),
        report=lines.append, step_s=lambda: (7.0,),
    )  # fmt: skip
    stop_when_ready(supervisor, [ready], signal.SIGTERM)
    assert supervisor.run() == 0
    assert lines[-1] == (
        "learner was killed before it had saved its state, which took longer than 0.5 s (its last steps took "
        "7.0 s); the run goes on from its last checkpoint. "
        "How long it gets: launch.stop_grace_s=0.25, launch.stop_grace_max_s=0.5."
    )


def test_a_peer_that_fails_for_good_leaves_the_learner_the_time_to_save_and_one_signal_ends_that(
    tmp_path: Path,
) -> None:
    """The learner would never end: the only signal of this run hurries an end that nobody asked for."""
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    lines: list[str] = []
    supervisor: Supervisor

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("stopping: "):
            supervisor.request_stop(signal.SIGINT)

    supervisor = Supervisor(
        [python("learner", code, leads=True), python("actor", "raise SystemExit(4)")], tmp_path,
        FAST.model_copy(update={"stop_grace_s": 600.0, "max_restarts": 0}), SystemClock(), report=hear,
    )  # fmt: skip
    with pytest.raises(PeerFailedError, match="actor failed 1 times"):
        supervisor.run()
    assert lines[0].startswith("stopping: learner ends its step and saves, within 600.0 s")


def test_the_grace_of_a_learner_follows_its_steps_up_to_a_limit() -> None:
    settings = LaunchSettings(stop_grace_s=20.0, stop_grace_max_s=100.0)
    graces_s = {step_s: settings.saving_grace_s(step_s) for step_s in (0.0, 0.5, 10.0, 60.0)}
    assert graces_s == {0.0: 20.0, 0.5: 21.5, 10.0: 50.0, 60.0: 100.0}
    assert settings.model_copy(update={"stop_grace_s": 300.0}).saving_grace_s(60.0) == 300.0


def test_a_learner_that_fails_while_it_stops_is_no_success(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time\n"
        "def stop(*_): print('error: no space left. Free some.'); sys.exit(4)\n"
        f"signal.signal(signal.SIGTERM, stop)\npathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    supervisor = Supervisor([python("learner", code, leads=True)], tmp_path, FAST, SystemClock())
    stop_when_ready(supervisor, [ready], signal.SIGTERM)
    with pytest.raises(
        PeerFailedError, match="while it was stopping, learner exited with code 4: no space left"
    ):
        supervisor.run()


def test_a_stop_while_a_failed_learner_waits_to_be_started_again_is_a_stop(tmp_path: Path) -> None:
    """It failed before it was asked to end, so the end is the one that was asked for."""
    supervisor: Supervisor
    supervisor = Supervisor(
        [python("learner", "raise SystemExit(4)", leads=True)],
        tmp_path,
        FAST.model_copy(update={"restart_backoff_s": 600.0, "restart_backoff_max_s": 600.0}),
        SystemClock(),
        report=lambda line: supervisor.request_stop(signal.SIGINT),
    )
    assert supervisor.run() == 130
    assert (supervisor.stopped, supervisor.num_restarts) == (True, 1)


def test_a_fatal_error_is_passed_on_as_its_one_line(tmp_path: Path) -> None:
    code = (
        "print('some log line'); print('error: batching.groups is odd. Make it even.'); raise SystemExit(2)"
    )
    supervisor, end = supervise([python("learner", code, leads=True)], tmp_path)
    assert (end, supervisor.first_cause) == (2, "learner: batching.groups is odd. Make it even.")


def test_a_restart_is_reported_with_cause_and_log(tmp_path: Path) -> None:
    lines: list[str] = []
    specs = [
        python("learner", "import time; time.sleep(600)", leads=True),
        python("actor", "print('error: the tool is gone. Start it.'); raise SystemExit(4)"),
    ]
    supervisor = Supervisor(specs, tmp_path, FAST, SystemClock(), report=lines.append)
    with pytest.raises(PeerFailedError):
        supervisor.run()
    assert lines[0] == (
        "actor exited with code 4: the tool is gone. Start it.; starting it again in 0.0 s, "
        f"see {tmp_path / 'actor.log'}"
    )
    assert len(lines) == FAST.max_restarts + 1
    assert lines[-1].startswith("stopping: learner ends its step and saves, within 5.0 s")


def test_cores_are_divided_and_unknown_ones_refused() -> None:
    assert divide_cpus([0]) == ((0,), (0,))
    assert divide_cpus([0, 1, 2, 3]) == ((0, 1), (2, 3))
    assert divide_cpus([0, 1], learner=[1]) == ((1,), (0,))
    with pytest.raises(ConfigError, match="core"):
        divide_cpus([0, 1], learner=[5])
