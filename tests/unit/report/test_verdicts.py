from __future__ import annotations

import pytest

from forebay.report.load import load_run
from forebay.report.verdicts import environments_of, limits_of, verdict_of, window_of
from tests.unit.report.runs import CONFIG, line, make_run, new_values


def window(path, lines, **values):
    return window_of(load_run(make_run(path, lines, **values)))


def test_a_short_run_is_judged_whole(tmp_path) -> None:
    found = window(tmp_path / "run", [line(3.0, 1.0, **new_values()), line(3.0, 3.0, **new_values())])
    assert found.label == "the whole run (10 s)"
    assert (found.num_batches, found.cycle_s, found.shares.wall_s) == (2, 3.0, 10.0)
    assert found.shares.share("starved") == pytest.approx(0.4)
    assert found.episode_s == pytest.approx(5.0)  # 0.1 + 0.2 + 0.7 + 4.0
    assert (found.trajectories, found.failures, found.masked) == (32, {"timeout": 2}, {"unscored": 20})
    assert (found.groups, found.zero_spread_groups, found.waits) == (8, 2, {"episodes": 2.0})


def test_warm_up_is_left_out(tmp_path) -> None:
    config = CONFIG | {"learner": {"warmup_steps": 1}}
    found = window(tmp_path / "run", [line(1.0, 99.0), line(3.0, 1.0)], config=config)
    assert (found.num_batches, found.shares.wall_s) == (1, 4.0)


def test_a_long_run_is_judged_by_its_last_five_minutes(tmp_path) -> None:
    lines = [line(1.0, 9.0, **new_values())] * 30 + [line(9.8, 0.2, goodput=0.9, **new_values())] * 31
    run = load_run(make_run(tmp_path / "run", lines))
    assert window_of(run).label == "the last 5 min"
    assert (
        verdict_of(run).sentence == "learner busy 98 % of the last 5 min, goodput 90 %: no change is needed"
    )


def test_environments_of_older_runs_come_from_the_actors_logs(tmp_path) -> None:
    logged = {"environment_s.calc.p95": 2.0, "episode_s.p50": 3.0, "episode_s.p95": 6.0, "live": 10}
    run = load_run(make_run(tmp_path / "run", [line()], actors=[logged]))
    (found,) = environments_of(run, run.history.buckets)
    assert (found.name, found.step_p95_s, found.episode_p50_s, found.episode_p95_s) == ("calc", 2.0, 3.0, 6.0)
    assert (found.max_turns, found.episode_timeout_s) == (4, 15.0)


def test_where_actors_find_their_number_the_limit_is_what_they_may_come_to(tmp_path) -> None:
    actors = {"processes": 2, "episodes_per_process": "auto", "max_episodes_per_process": 700}
    limits = limits_of(load_run(make_run(tmp_path / "run", config=CONFIG | {"actors": actors})))
    assert (limits.actor_processes, limits.episodes_per_process) == (2, 700)
    assert limits.episodes_setting == "actors.max_episodes_per_process"
    fixed = limits_of(load_run(make_run(tmp_path / "fixed")))
    assert (fixed.episodes_per_process, fixed.episodes_setting) == (32, "actors.episodes_per_process")


def test_limits_come_from_the_stored_configuration(tmp_path) -> None:
    limits = limits_of(load_run(make_run(tmp_path / "run")))
    assert (limits.groups, limits.group_size, limits.credit, limits.credit_is_set) == (4, 4, 5, False)
    config = CONFIG | {
        "staleness": {"max_staleness": 0, "credit": 2},
        "batching": {"minibatches": 3, "epochs": 2},
    }
    limits = limits_of(load_run(make_run(tmp_path / "other", config=config)))
    assert (limits.max_staleness, limits.credit, limits.credit_is_set, limits.updates_per_batch) == (
        0,
        2,
        True,
        6,
    )
    limits = limits_of(load_run(make_run(tmp_path / "empty", config={"batching": {"groups": "many"}})))
    assert (limits.groups, limits.credit) == (1, 1)


@pytest.mark.parametrize(
    ("siblings", "groups", "size"), [("all", 4, 4), ("pairs", 8, 2), ("finished", 16, 1), (3, 4, 4)]
)
def test_groups_are_counted_as_the_store_holds_them(tmp_path, siblings, groups: int, size: int) -> None:
    config = CONFIG | {"objective": {"siblings": siblings}}
    run = load_run(make_run(tmp_path, [line(), line()], config=config))
    limits = limits_of(run)
    assert (limits.groups, limits.group_size, limits.siblings) == (groups, size, str(siblings))
    assert window_of(run).groups == 2 * groups


def test_a_run_without_a_batch_is_judged_by_its_actors(tmp_path) -> None:
    actors = [{"live": 3, "finished.timeout": 6, "failed.environment": 0}]
    verdict = verdict_of(load_run(make_run(tmp_path / "run", actors=actors)))
    assert verdict.cause == "failures"
    assert "6 timeout" in verdict.sentence
    assert verdict_of(load_run(make_run(tmp_path / "empty"))).cause == "no_steps"
