from __future__ import annotations

import dataclasses
import math
import statistics

import msgspec
import pytest

pytest.importorskip("jax")

from benchmarks.staleness_study import cells, controlled, inference, on_the_clock, report, results
from benchmarks.staleness_study.cells import Cell, Scale, Timing
from benchmarks.staleness_study.drawing import Chart, Point, Series, draw
from benchmarks.staleness_study.episodes import Actors
from benchmarks.staleness_study.generation import Engine
from benchmarks.staleness_study.problems import Problem, load_problem
from benchmarks.staleness_study.training import Recipe, Trainer
from benchmarks.staleness_study.virtual_time import VirtualClock, VirtualLoop
from forebay.learner.optimizer import OptimizerSettings
from forebay.objectives.settings import ObjectiveSettings
from forebay.trajectory import PolicyVersion

# A fifth of the batch, and few shapes: each program compiles in a second or two.
_SMALL = {"groups": 4, "group_size": 2, "rows": 1, "row_length": 256, "max_programs": 1}
_SHAPES = {"slots": 8, "prefill_rows": 8, "prefill_chunks": (128,), "kv_windows": (128,)}


@pytest.fixture(scope="module")
def problem() -> Problem:
    found = load_problem("calculator")
    config = found.config.model_copy(
        update={
            "batching": found.config.batching.model_copy(update=_SMALL),
            "generator": found.config.generator.model_copy(update=_SHAPES),
        }
    )
    # One block of its two compiles in half the time.
    params = {**found.params, "layers": {name: leaf[:1] for name, leaf in found.params["layers"].items()}}
    return found._replace(config=config, model=dataclasses.replace(found.model, num_layers=1), params=params)


@pytest.fixture(scope="module")
def engine(problem: Problem) -> Engine:
    return Engine(problem)


@pytest.fixture(scope="module")
def trainer(problem: Problem) -> Trainer:
    # The bonus teaches something even where no episode succeeds.
    return Trainer(problem, Recipe(ObjectiveSettings(entropy_coef=0.01), 3e-4))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cells.SCALES, ("test", "calculator"), Scale(6, (3, 6), 2, 8))


def _cell(regime: cells.Regime, lag: int, seed: int = 0) -> Cell:
    return Cell("calculator", "default", regime, lag, seed, scale="test")


def test_the_study_has_the_default_objective_of_the_product() -> None:
    assert ObjectiveSettings(**cells.OBJECTIVES["default"]) == ObjectiveSettings()
    assert cells.OPTIMIZERS["default_drift"] == {"drift_price": OptimizerSettings().drift_price}


def test_the_plan_has_each_run_once_and_a_baseline_for_all() -> None:
    planned = list(dict.fromkeys(cells.plan()))
    assert len({cells.fingerprint(cell, "", Timing(1.0, 0.1)) for cell in planned}) == len(planned)
    bases = {report.baseline_of(cell)._replace(seed=cell.seed) for cell in planned}
    assert bases <= set(planned)
    lags = {cell.lag for cell in planned if (cell.objective, cell.regime) == ("default", "controlled")}
    assert lags == set(cells.LAGS)


@pytest.mark.parametrize("lag", [0, 2])
def test_every_token_is_exactly_as_old_as_the_lag(
    problem: Problem, engine: Engine, trainer: Trainer, lag: int
) -> None:
    outcome = controlled.run_controlled(_cell("controlled", lag), problem, engine, trainer)
    ages = [(step.staleness, step.staleness_max, step.masked) for step in outcome.steps]
    assert ages == [(float(min(step, lag)), min(step, lag), 0) for step in range(6)]
    diverged = [step.k3 for step in outcome.steps]
    # Without a lag what is trained is what was sampled, to rounding.
    assert max(diverged) < 1e-9 if lag == 0 else min(diverged[3:]) > 1e-6


def test_later_turns_are_younger_where_weights_are_updated_in_flight(
    problem: Problem, engine: Engine, trainer: Trainer
) -> None:
    outcome = controlled.run_controlled(_cell("spread", 3), problem, engine, trainer)
    last = outcome.steps[-1]
    assert last.staleness_max == 3 and 1.0 < last.staleness < 3.0


def test_paired_runs_begin_with_the_same_batch_and_a_seed_changes_it(
    problem: Problem, engine: Engine, trainer: Trainer
) -> None:
    runs = [
        controlled.run_controlled(_cell("controlled", lag, seed), problem, engine, trainer)
        for lag, seed in ((0, 0), (2, 0), (0, 1))
    ]
    first, paired, other = (run.steps[0] for run in runs)
    assert first == paired and first != other


def test_on_the_clock_no_token_is_older_than_the_limit(
    problem: Problem, engine: Engine, trainer: Trainer
) -> None:
    cell, timing = _cell("wait", 2), Timing(0.5, 0.1)
    outcome = on_the_clock.run_on_the_clock(cell, problem, engine, trainer, timing)
    again = on_the_clock.run_on_the_clock(cell, problem, engine, trainer, timing)
    assert outcome == again
    assert [step.staleness_max <= 2 for step in outcome.steps] == [True] * 6
    assert outcome.steps[-1].staleness > 0.0
    assert outcome.ends_s == sorted(outcome.ends_s)
    synchronous = on_the_clock.run_on_the_clock(_cell("wait", 0), problem, engine, trainer, timing)
    assert outcome.ends_s[-1] < synchronous.ends_s[-1]
    counters = outcome.counters
    assert counters["trajectories.accepted"] >= counters["trajectories.committed"] == 6 * 4 * 2


def test_a_generator_answers_by_the_version_that_was_asked(problem: Problem, engine: Engine) -> None:
    actors = Actors(problem, engine, turn_s=0.5, slow=False)
    weights = engine.prepare(problem.params)
    actors.generator.load(PolicyVersion(0, 3), weights)
    task = problem.held_out[0]
    report_ = actors.evaluate([task], seed=1)
    assert (report_.version, report_.oldest_version) == (PolicyVersion(0, 3), PolicyVersion(0, 3))
    assert actors.clock.monotonic_s() == pytest.approx(0.5 * report_.score.turns)
    actors.close()


def test_virtual_time_passes_only_while_nothing_is_ready() -> None:
    loop = VirtualLoop(lambda: False)
    clock = VirtualClock(loop)
    clock.sleep(1000.0)
    assert clock.monotonic_s() == 1000.0
    with pytest.raises(RuntimeError, match="nothing will happen"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_non_inferiority_is_judged_by_the_one_sided_bound() -> None:
    baseline = dict.fromkeys(range(5), 0.7)
    # Student's 95 % quantile of four degrees of freedom is 2.1318.
    differences = [-0.01, 0.0, 0.01, 0.02, -0.02]
    treatment = {seed: 0.7 + one for seed, one in enumerate(differences)}
    half = 2.1318468 * statistics.stdev(differences) / math.sqrt(5)
    found = inference.compare(treatment, baseline, 0.03)
    assert (found.low, found.high) == (pytest.approx(-half), pytest.approx(half))
    assert found.verdict == "non-inferior"
    assert inference.compare(treatment, baseline, 0.015).verdict == "undecided"
    worse = {seed: reward - 0.1 for seed, reward in treatment.items()}
    assert inference.compare(worse, baseline, 0.03).verdict == "inferior"
    assert inference.compare({0: 0.7}, baseline, 0.03).verdict == "too few seeds"


def test_only_seeds_that_both_have_are_compared() -> None:
    found = inference.compare({0: 0.5, 1: 0.6, 7: 9.0}, {0: 0.4, 1: 0.5, 2: -9.0}, 0.03)
    assert (found.count, found.mean) == (2, pytest.approx(0.1))


def test_results_survive_a_kill_in_the_middle_of_a_line(tmp_path, problem, engine, trainer) -> None:
    cell = _cell("controlled", 0)
    outcome = controlled.run_controlled(cell, problem, engine, trainer)
    result = results.summarize_run(cell, "a", outcome, 1.0, "abc")
    path = tmp_path / "results.jsonl"
    results.append(path, result)
    path.write_bytes(path.read_bytes() + msgspec.json.encode(result)[:100])
    results.append(path, msgspec.structs.replace(result, fingerprint="b"))
    known = results.read(path)
    assert sorted(known) == ["a", "b"] and known["a"] == result
    assert result.reward == pytest.approx(statistics.fmean(one.reward for one in outcome.evaluations))


def test_fresh_data_is_trained_alike_whoever_finds_the_bounds(
    problem: Problem, engine: Engine, trainer: Trainer
) -> None:
    found = ObjectiveSettings(preset="m2po", advantage="group_mean", entropy_coef=0.01)
    other = Trainer(problem, Recipe(found, 3e-4))
    bounded, fixed = (
        controlled.run_controlled(_cell("controlled", 0), problem, engine, one) for one in (other, trainer)
    )
    assert bounded.evaluations == fixed.evaluations
    assert [step.clipped for step in bounded.steps] == [0.0] * 6
    assert [step.entropy for step in bounded.steps] == pytest.approx([step.entropy for step in fixed.steps])


def test_a_longer_run_is_compared_with_a_synchronous_one_of_the_usual_length_and_rate() -> None:
    longer = Cell("calculator", "default_drift", "wait", 8, 3, 0.5, "long")
    assert report.baseline_of(longer) == Cell("calculator", "default", "wait", 0, 0)
    assert report.baseline_of(longer._replace(scale="full")).rate == 0.5


def _longer(seed: int, reward: float) -> results.Result:
    one = _result("controlled", 8, seed, reward)
    return msgspec.structs.replace(one, cell=one.cell._replace(scale="long"))


def _usual(seed: int, reward: float) -> results.Result:
    one = _result("controlled", 0, seed, reward)
    return msgspec.structs.replace(one, cell=one.cell._replace(scale="full"))


def test_trials_and_seeds_that_chose_something_are_compared_but_do_not_judge_with_fresh_ones(
    tmp_path,
) -> None:
    chose, fresh, trial = 0, cells.FRESH_SEEDS[0], cells.TRIAL_SEEDS[0]
    found = [_usual(seed, 0.7) for seed in (chose, fresh, trial)]
    found += [_longer(chose, 0.9), _longer(fresh, 0.8), _longer(trial, 0.6)]
    rows = {row.part: row for row in report.rows_of(found)}
    assert {part: (row.reward.count, round(row.difference.mean, 6)) for part, row in rows.items()} == {
        "all": (2, 0.0),
        "chosen by": (1, 0.2),
        "fresh": (1, 0.1),
        "trial": (1, -0.1),
    }
    page = tmp_path / "page.md"
    page.write_text("<!-- results: begin --><!-- results: end -->")
    report.write_pages(found, page, tmp_path, ["calculator"])
    places = [page.read_text().index(f"| 8 | 1 | {reward} |") for reward in ("0.800", "0.900", "0.600")]
    assert places == sorted(places)


def test_no_fresh_seed_chose_anything() -> None:
    assert not set(cells.FRESH_SEEDS) & {*cells.SEEDS, *cells.TRIAL_SEEDS}
    assert set(cells.TIMED_SEEDS) <= set(cells.FRESH_SEEDS)


def test_a_speed_has_an_interval_over_paired_seeds() -> None:
    found = [_timed(0, seed, ends) for seed, ends in enumerate((30.0, 32.0))]
    found += [_timed(8, seed, 10.0) for seed in range(2)]
    row = next(row for row in report.rows_of(found) if row.cell.lag == 8)
    # Student's 97.5 % quantile of one degree of freedom is 12.7062; the ratios are 3.0 and 3.2.
    assert row.speedup is not None
    assert (row.speedup.mean, row.speedup.low) == (pytest.approx(3.1), pytest.approx(3.1 - 1.27062, abs=1e-5))
    assert "| 3.10 ± 1.27 × |" in report.table([row], "calculator", report.ON_THE_CLOCK)


def _timed(lag: int, seed: int, ends_s: float) -> results.Result:
    return msgspec.structs.replace(_result("wait", lag, seed, 0.7), ends_s=[ends_s])


def test_a_page_shows_what_there_is(tmp_path) -> None:
    found = [_result("controlled", 0, 0, 0.7), _result("controlled", 8, 0, 0.6), _result("wait", 0, 0, 0.7)]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    report.write_pages(found, page, tmp_path, ["calculator"])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| default | controlled | 8 | 1 | 0.600 | -0.100 (-inf) | too few seeds |" in text
    assert (tmp_path / "staleness-calculator-lag.svg").read_text().startswith("<svg")


def test_a_chart_puts_values_where_its_axes_say() -> None:
    chart = Chart("t", "x", "y", (Series("a & b", (Point(0.0, 0.0), Point(10.0, 1.0))),))
    text = draw(chart)
    assert 'points="64.0,352.0 550.0,36.0"' in text
    assert "a &amp; b" in text


def test_a_chart_grows_with_its_legend() -> None:
    many = tuple(Series(f"s{number}", (Point(0.0, 0.0), Point(1.0, 1.0))) for number in range(25))
    assert 'viewBox="0 0 790 400"' in draw(Chart("t", "x", "y", many[:3]))
    text = draw(Chart("t", "x", "y", many))
    height = float(text.split('viewBox="0 0 790 ')[1].split('"')[0])
    last = float(text.split(">s24<")[0].rsplit(' y="', 1)[1].split('"')[0])
    assert last < height - 8.0


def _result(regime: cells.Regime, lag: int, seed: int, reward: float) -> results.Result:
    return results.Result(
        cell=_cell(regime, lag, seed),
        fingerprint=f"{regime}{lag}{seed}",
        reward=reward,
        evaluations=[(6, reward, 9.0 if regime == "wait" else None)],
        curve=[reward],
        means=dict.fromkeys(("staleness", "ess", "rejected", "clipped", "k3", "entropy"), 0.5),
        totals={"tokens": 10, "masked": 0, "discarded": 0, "unscored": 0, "episodes": 8},
        staleness_max=lag,
        nonfinite=0,
        ends_s=[9.0] if regime == "wait" else [],
        counters={},
        cpu_s=1.0,
    )
