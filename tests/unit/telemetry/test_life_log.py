from __future__ import annotations

import pytest

from forebay.clock import ManualClock
from forebay.telemetry.life_log import LifeLog, read_lives, read_lives_since
from forebay.telemetry.life_table import Weighed, tabulate
from forebay.telemetry.little import Flow
from tests.unit.telemetry.lives import lived


def write(path, steps, start_s=1000.0, environment="web") -> None:
    clock = ManualClock(start_s)
    with LifeLog(path, clock) as log:
        for step in steps:
            clock.advance(2.0)
            table = tabulate([Weighed(environment, lived(10.0 * step, environment=8.0 * step), 2)])
            log.write(step, 2.0, table, {"buffer": Flow(1, 3.0, 4, 8.0, 20.0)})


def test_what_is_written_is_read_and_added_up(tmp_path) -> None:
    path = tmp_path / "life.jsonl"
    write(path, [1, 2, 3])
    table = read_lives(path)
    assert (table.num_batches, table.wall_s) == (3, 6.0)
    assert table.environments["web"].token_s == 2 * (10 + 20 + 30)
    assert table.environments["web"].stages["environment"].bins == {104: (2, 1), 112: (2, 1), 117: (2, 1)}
    assert table.flows == {"buffer": Flow(3, 9.0, 12, 24.0, 60.0)}
    assert read_lives(tmp_path / "absent.jsonl") is None


def test_a_step_trained_anew_replaces_itself_and_all_later_ones(tmp_path) -> None:
    path = tmp_path / "life.jsonl"
    write(path, [1, 2, 3])
    write(path, [2], start_s=1100.0)
    table = read_lives(path)
    assert (table.num_batches, table.whole.trajectories, table.whole.token_s) == (2, 2, 2 * (10 + 20))


def test_a_part_of_a_run_is_read_by_time(tmp_path) -> None:
    path = tmp_path / "life.jsonl"
    write(path, [1, 2, 3])
    whole, end = read_lives_since(path, 1004.0)
    assert (whole.num_batches, end.num_batches, end.wall_s) == (3, 2, 4.0)
    assert (whole.whole.token_s, end.whole.token_s) == (120.0, 100.0)
    assert read_lives_since(path, 9999.0)[1] is None


def test_the_file_that_was_replaced_comes_first(tmp_path) -> None:
    write(tmp_path / "life.jsonl.1", [1])
    write(tmp_path / "life.jsonl", [2])
    assert read_lives(tmp_path / "life.jsonl").num_batches == 2


@pytest.mark.parametrize("line", [
    b"not json", b"{}", b'{"step":1}', b"\xff\xfe",
    b'{"step":1e30,"time_s":1,"wall_s":1,"environments":{}}',
    b'{"step":-1,"time_s":1,"wall_s":1,"environments":{}}',
    b'{"step":9,"time_s":1,"wall_s":null,"environments":{}}',
    b'{"step":9,"time_s":1,"wall_s":1,"environments":{"e":{"stages":{"buffer":[1,1,{"9999":[1,1]}]}}}}',
    b'{"step":9,"time_s":1,"wall_s":1,"environments":{"e":{"trajectories":-3}}}',
])  # fmt: skip
def test_damaged_lines_are_left_out(tmp_path, line) -> None:
    path = tmp_path / "life.jsonl"
    write(path, [1, 2])
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert read_lives(path).num_batches == 2


def test_a_line_that_would_be_too_long_is_counted_and_harms_no_other(tmp_path) -> None:
    log = LifeLog(tmp_path / "life.jsonl", ManualClock(1.0))
    log.write(1, 1.0, tabulate(Weighed(f"e{i}", lived(environment=1.0), 1) for i in range(20_000)), {})
    log.write(2, 1.0, tabulate([Weighed("e", lived(environment=1.0), 1)]), {})
    log.close()
    assert log.num_too_long == 1
    assert list(read_lives(tmp_path / "life.jsonl").environments) == ["e"]
