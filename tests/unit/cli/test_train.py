from __future__ import annotations

from pathlib import Path

from forebay.cli.runs import own_run
from forebay.cli.train import farewell, processes
from forebay.config import load_config
from forebay.telemetry.summary import RunSummary, write_summary
from tests.unit.cli.support import forebay

SUMMARY = RunSummary(
    busy=0.974,
    goodput=None,
    starved=0.01,
    steps=40,
    steps_per_s=1.0,
    fresh_tokens_per_s=900.0,
    max_staleness=8,
    group_size=4,
    step_s=0.5,
    env_s=1.0,
    reward_first=0.25,
    reward_last=0.875,
    staleness_max=8,
    staleness_mean=4.0,
    discarded=3,
    masked_tokens=0,
    compiles_after_warmup=0,
    accepted=163,
    trained=160,
    lost=0,
    repeated=0,
)


def test_a_run_is_one_leading_learner_a_generator_actors_and_an_evaluator(tmp_path: Path) -> None:
    overrides = [
        f"run.directory={tmp_path}",
        "actors.processes=2",
        "learner.eval_every=5",
        "generator.host=::1",
    ]
    directory, run = own_run(load_config(None, [*overrides, "generator.port=8123"]))
    with directory:
        specs = {spec.name: spec for spec in processes(run)}
    assert list(specs) == ["learner", "generator", "actor-0", "actor-1", "evaluator"]
    assert [name for name, spec in specs.items() if spec.leads] == ["learner"]
    assert specs["generator"].argv[-2:] == ("--port", "8123")
    for name in ("actor-0", "actor-1", "evaluator"):
        assert "http://[::1]:8123" in specs[name].argv
    assert {spec.cpus for name, spec in specs.items() if name != "learner"} == {specs["generator"].cpus}


def test_the_end_says_what_came_out_and_what_to_do_next(tmp_path: Path) -> None:
    directory, run = own_run(load_config(None, [f"run.directory={tmp_path}"]))
    path = run.layout.path
    with directory:
        write_summary(path / "summary.json", SUMMARY)
        lines = farewell(path).splitlines()
    assert lines[0] == ("40 steps; learner busy 97.4%, goodput unknown; reward 0.25 at first, 0.875 at last")
    assert "163 accepted, 160 trained, 3 discarded, 0 lost, 0 repeated" in lines[1]
    assert lines[2].startswith("verdict: no batch has been trained")  # there is no line of metrics
    commands = [line.removeprefix("next:").strip() for line in lines[-3:]]
    assert commands == [
        f"forebay report {path}",
        f"forebay eval {path}",
        f"forebay export {path} --to MODEL_DIRECTORY",
    ]


def test_a_dry_run_checks_prints_and_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[run]\ndirectory = '{tmp_path}/runs'\n[generator]\nport = 0\n")
    code, text = forebay("train", str(path), "--dry-run", "learner.steps=7")
    assert code == 0 and "steps = 7" in text
    code, text = forebay("train", str(path), "--dry-run", "environment.e.entrypoint=nowhere:Nothing")
    assert code == 2 and "nowhere:Nothing cannot be imported" in text
    assert list(tmp_path.iterdir()) == [path]
