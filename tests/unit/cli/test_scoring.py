from __future__ import annotations

import json

from forebay.actors.evaluation import EvaluationReport, Score
from forebay.actors.scores import compare
from forebay.cli.scoring import as_json, describe, describe_comparison
from forebay.trajectory import PolicyVersion

SCORE = Score(
    num_tasks=64,
    num_episodes=128,
    num_failed=3,
    reward=0.953125,
    reward_low=0.871,
    reward_high=0.9839,
    method="wilson",
    pass_at={"1": 0.953125, "2": 0.97},
    turns=3.14,
    tokens=37.6,
)


def report(score: Score = SCORE, **environments: Score) -> EvaluationReport:
    return EvaluationReport(
        version=PolicyVersion(1, 120),
        oldest_version=PolicyVersion(1, 119),
        score=score,
        environments=environments or {"sums": score},
        causes={"sums: rare": 1, "sums: frequent": 2, "a": 1, "b": 1, "c": 1},
        rewards={"sums/t1": (1.0, 0.0)},
    )


def test_an_evaluation_says_how_sure_it_is_and_what_failed() -> None:
    lines = describe(report()).splitlines()
    assert lines[0] == (
        "version 120: reward 0.953 [0.871, 0.984] on 64 held-out tasks, 2 samples each, pass@2 0.970 "
        "(95 % interval by Wilson's score method); 3.1 turns and 38 tokens an episode; "
        "3 of 128 episodes failed"
    )
    assert lines[1:] == [
        "  2 times: sums: frequent",
        "  1 times: sums: rare",
        "  1 times: a",
        "  and 2 other causes",
    ]


def test_several_environments_have_a_line_each() -> None:
    other = Score(
        num_tasks=1,
        num_episodes=1,
        num_failed=0,
        reward=0.5,
        reward_low=None,
        reward_high=None,
        method="none",
        pass_at={},
        turns=1.0,
        tokens=2.0,
    )
    lines = describe(report(sums=SCORE, games=other)).splitlines()
    assert lines[1].startswith("  sums: reward 0.953 [0.871, 0.984]")
    assert lines[2] == (
        "  games: reward 0.500 on 1 held-out tasks (no interval from one task); "
        "1.0 turns and 2 tokens an episode"
    )


def test_a_comparison_names_the_better_run_only_if_the_interval_excludes_0() -> None:
    first = {f"t{i}": [0.0] for i in range(20)}
    better = compare(first, {f"t{i}": [float(i % 2)] for i in range(20)})
    same = compare(first, {f"t{i}": [float(i == 3) - float(i == 4)] for i in range(20)})
    assert better is not None and same is not None
    text = describe_comparison("a", "b", better)
    assert text.startswith("b - a: +0.500 [") and "b is better" in text and "higher on 10, lower on 0" in text
    assert "not told apart" in describe_comparison("a", "b", same)
    worse = compare({f"t{i}": [1.0] for i in range(20)}, first)
    assert worse is not None and "a is better" in describe_comparison("a", "b", worse)


def test_json_holds_every_reward() -> None:
    tree = json.loads(as_json({"runs/x": report()}, compare({"t": [0.0]}, {"t": [1.0]})))
    assert tree["runs"][0]["run"] == "runs/x"
    assert tree["runs"][0]["score"]["pass_at"] == {"1": 0.953125, "2": 0.97}
    assert tree["runs"][0]["rewards"] == {"sums/t1": [1.0, 0.0]}
    assert tree["comparison"]["num_better"] == 1
