"""How controllers are judged beside fixed numbers: one number for all seeds, and each seed's own best."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.controller import Job, Runs, seeds_of, with_tables
from benchmarks.controller_study.cases import Case
from benchmarks.controller_study.judging import Ran, judge, ratio_of_means, table, worth_running


def ran(seed: int, per_s: float, fixed: int | None = None, refused: float = 0.0, processes: int = 1) -> Ran:
    return Ran(
        case="a case",
        seed=seed,
        fixed=fixed,
        processes=processes,
        steps=10,
        fresh_per_s=per_s,
        refused=refused,
        lost=0,
        busy=0.5,
        mean_live=10.0,
        staleness=1.0,
    )


def test_the_interval_of_a_ratio_is_students() -> None:
    # The rests of a - 1.5 b are -1 and 1: 12.706 standard errors of 1, over a mean of 2.
    assert ratio_of_means((2.0, 4.0), (2.0, 2.0)) == pytest.approx((1.5, -4.853, 7.853), abs=1e-3)


def test_what_the_seeds_share_cancels() -> None:
    assert ratio_of_means((1.9, 3.8, 9.5), (2.0, 4.0, 10.0)) == pytest.approx((0.95, 0.95, 0.95))


def test_one_number_holds_for_all_seeds_and_another_reading_takes_each_seed_s_own() -> None:
    runs = [
        *(ran(seed, rate, fixed=16) for seed, rate in enumerate((10.0, 6.0))),
        *(ran(seed, rate, fixed=32) for seed, rate in enumerate((8.0, 9.0))),
        *(ran(seed, 9.0) for seed in range(2)),
        *(ran(seed, 8.0, processes=4, refused=0.01 * seed) for seed in range(2)),
    ]
    verdict = judge(runs, (0, 1))
    assert (verdict.number, verdict.numbers) == (32, (16, 32))
    assert verdict.controlled[1].ratio.value == pytest.approx(18.0 / 17.0)
    assert verdict.controlled[1].ratios == pytest.approx((0.9, 1.0))
    assert verdict.controlled[4].refused == 0.01


def test_a_number_that_is_refused_often_is_no_measure() -> None:
    runs = [ran(0, 99.0, fixed=64, refused=0.03), ran(0, 10.0, fixed=16, refused=0.02), ran(0, 9.5)]
    verdict = judge(runs, (0,))
    assert (verdict.number, verdict.controlled[1].ratio.value) == (16, 0.95)
    with pytest.raises(ValueError, match="no fixed number"):
        judge(runs[:1], (0,))


def test_a_number_that_was_not_run_with_every_seed_is_not_the_one_for_all() -> None:
    runs = [*(ran(seed, 5.0, fixed=16) for seed in range(2)), ran(0, 9.0, fixed=32), ran(0, 5.0), ran(1, 5.0)]
    verdict = judge(runs, (0, 1))
    assert (verdict.number, verdict.numbers) == (16, (32, 16))


def test_numbers_without_hope_are_not_run_with_other_seeds() -> None:
    first = [
        ran(0, 7.9, 8),
        ran(0, 8.1, 16),
        ran(0, 10.0, 24),
        ran(0, 15.0, 32, 0.05),
        ran(0, 15.0, 40, 0.07),
    ]
    assert worth_running(first) == [16, 24, 32]


def test_a_row_has_both_readings() -> None:
    runs = [ran(0, 10.0, fixed=16), ran(1, 12.0, fixed=16), ran(0, 9.0), ran(1, 12.0, refused=0.004)]
    row = table({"a case": judge(runs, (0, 1))}).splitlines()[-1]
    assert row.startswith("| a case | 16 | 0.95 (")
    assert row.endswith("| 0.90, 0.95 | 0.4 % |")


def test_runs_that_are_kept_are_not_made_again(tmp_path: Path) -> None:
    path, case = tmp_path / "runs.jsonl", Case("tiny", steps=2)
    jobs = [Job(case, 0, 64), Job(case, 0, None, 2)]
    made = Runs(path, jobs=1).make(jobs)
    assert [(one.fixed, one.processes, one.fresh_per_s > 0.0) for one in made] == [
        (64, 1, True),
        (None, 2, True),
    ]
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first.replace(b'"lost":0', b'"lost":77') + b"\n" + second + b"\n")
    assert [one.lost for one in Runs(path, jobs=1).make(jobs)] == [77, 0]
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("text", ["", "5-", "7-5", "a", "0-4;5"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seeds are written"):
        seeds_of(text)


def test_seeds_come_in_blocks() -> None:
    assert seeds_of("0-2, 5,7-8") == [[0, 1, 2], [5], [7, 8]]


def test_tables_go_between_the_marks() -> None:
    page = "a\n<!-- begin tables -->\nold\n<!-- end tables -->\nb\n"
    assert with_tables(page, "new") == page.replace("old", "new")
