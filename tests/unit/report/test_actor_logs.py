from __future__ import annotations

import pytest

from forebay.clock import ManualClock
from forebay.report.actor_logs import actor_log_paths, read_actor_logs
from forebay.telemetry.metrics import MetricsWriter


def write(path, lines) -> None:
    clock = ManualClock(1000.0)
    with MetricsWriter(path, clock) as writer:
        for values in lines:
            writer.write(0, values)
            clock.advance(5.0)


def test_counters_go_on_over_restarts_and_processes(tmp_path) -> None:
    write(
        tmp_path / "actor-0.jsonl",
        [{"claimed": 10, "live": 3}, {"claimed": 25, "live": 5}, {"claimed": 4, "live": 1}],
    )
    write(tmp_path / "actor-1.jsonl", [{"claimed": 1, "live": 10}])
    logs = read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1010.0)
    assert logs.counters == {"claimed": 25 + 4 + 1}
    assert logs.num_actors == 2
    assert [one.live for one in logs.bins] == [13.0, 5.0, 1.0]


def test_what_is_of_one_interval_is_no_counter(tmp_path) -> None:
    values = {
        "finish.timeout": 2,
        "ended.calc.accepted": 7,
        "turns.p50": 3,
        "episode_s.p50": 2.0,
        "finished.timeout": 4,
    }
    write(tmp_path / "actor-0.jsonl", [values, values | {"episode_s.p50": 4.0}])
    logs = read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1010.0)
    assert logs.counters == {"finished.timeout": 4}
    assert logs.figures == {"turns.p50": 3.0, "episode_s.p50": 3.0}


def test_the_last_five_minutes_are_counted_apart(tmp_path) -> None:
    write(tmp_path / "actor-0.jsonl", [{"claimed": i} for i in range(101)])
    logs = read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1500.0)
    assert logs.counters == {"claimed": 100}
    assert logs.recent == {"claimed": 60}


def test_rotated_logs_come_first_and_damaged_lines_are_skipped(tmp_path) -> None:
    write(tmp_path / "actor-0.jsonl.1", [{"claimed": 5}])
    write(tmp_path / "actor-0.jsonl", [{"claimed": 9}])
    with (tmp_path / "actor-0.jsonl").open("ab") as file:
        file.write(b'{"time_s":"noon"}\nnot json\n')
    assert read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1010.0).counters == {"claimed": 9}


def test_nothing_logged_is_nothing_known(tmp_path) -> None:
    logs = read_actor_logs(actor_log_paths(tmp_path / "absent"), 0.0, 1.0)
    assert (logs.bins, logs.live, logs.num_actors) == ((), None, 0)


def test_what_actors_saw_of_their_episodes_adds_up_over_processes_and_restarts(tmp_path) -> None:
    def looks(number: int, seen: int, squared: int) -> dict[str, int]:
        return {"looks": number, "seen.environment": seen, "seen_squared.environment": squared}

    # What came before the first line may have come before the window. Then two, then four inside at ten looks
    # each; restarted, then ten looks at nothing.
    counts = [looks(5, 500, 500), looks(15, 520, 540), looks(25, 560, 700), looks(10, 0, 0)]
    write(tmp_path / "actor-0.jsonl", counts)
    # Always three, but it died after ten looks of thirty.
    write(tmp_path / "actor-1.jsonl", [looks(0, 0, 0), looks(10, 30, 90)])
    logs = read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1015.0)
    flow = logs.inside["environment"]
    assert (flow.samples, flow.seen) == (30, 90.0)
    variances = (200 / 30 - (60 / 30) ** 2) + (90 / 30 - (30 / 30) ** 2)
    assert flow.seen_squared == pytest.approx(30 * (variances + 3.0**2))
    later = read_actor_logs(actor_log_paths(tmp_path), 1004.0, 1010.0)
    assert (later.inside["environment"].samples, later.inside["environment"].seen) == (10, 40.0)


def test_episodes_allowed_at_last_add_up_over_processes_and_decisions_over_restarts(tmp_path) -> None:
    def told(allowed: float, more: int) -> dict[str, float | int]:
        return {"episodes_allowed.tool": allowed, "decisions.tool.more": more}

    write(tmp_path / "actor-0.jsonl", [told(16.0, 1), told(64.0, 3), told(32.0, 2), {"live": 1}])
    write(tmp_path / "actor-1.jsonl", [told(8.0, 0), told(24.0, 2)])
    logs = read_actor_logs(actor_log_paths(tmp_path), 1000.0, 1020.0)
    assert logs.allowed == {"tool": 32.0 + 24.0}
    assert logs.counters == {"decisions.tool.more": 3 + 2 + 2}
