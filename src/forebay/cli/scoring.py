"""Evaluations as text and as JSON: what the figures are, how sure they are, and what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.actors.evaluation import EvaluationReport, Score
from forebay.actors.scores import Comparison, Method

_METHODS: Mapping[Method, str] = {
    "wilson": "95 % interval by Wilson's score method",
    "bootstrap": "95 % interval by a bootstrap over tasks",
    "none": "no interval from one task",
}
_MAX_CAUSES = 3


def describe(report: EvaluationReport) -> str:
    """Return an evaluation as a few lines."""
    lines = [f"version {report.version.version}: {_describe_score(report.score)}"]
    if len(report.environments) > 1:
        lines += [f"  {name}: {_describe_score(score)}" for name, score in report.environments.items()]
    lines += _describe_causes(report.causes)
    return "\n".join(lines)


def describe_comparison(first: str, second: str, comparison: Comparison) -> str:
    """Return how the second of two runs differs from the first, as one line.

    Args:
        first: Name of the first run.
        second: Name of the second.
        comparison: Paired by task.
    """
    difference = comparison.difference
    sure = "" if difference.low is None else f" {_interval(difference.low, difference.high)}"
    verdict = "not told apart"
    if difference.low is not None and difference.high is not None and difference.low * difference.high > 0:
        verdict = f"{second if difference.mean > 0 else first} is better"
    return (
        f"{second} - {first}: {difference.mean:+.3f}{sure} on {difference.num_tasks} common tasks "
        f"(95 % interval by a bootstrap over tasks, paired): {verdict}; "
        f"higher on {comparison.num_better}, lower on {comparison.num_worse}, equal on {comparison.num_equal}"
    )


def as_json(reports: Mapping[str, EvaluationReport], comparison: Comparison | None) -> str:
    """Return everything that was found as one JSON object.

    Args:
        reports: By the name of the run.
        comparison: Of the second with the first, if there are two.
    """
    runs = [{"run": name} | msgspec.to_builtins(report) for name, report in reports.items()]
    tree: dict[str, Any] = {"runs": runs}
    if comparison is not None:
        tree["comparison"] = msgspec.to_builtins(comparison)
    return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode()


def _describe_score(score: Score) -> str:
    if score.reward is None:
        return f"none of {score.num_episodes} episodes could be scored"
    samples = score.num_episodes // score.num_tasks
    asked = f"{score.num_tasks} held-out tasks" + (f", {samples} samples each" if samples > 1 else "")
    sure = "" if score.reward_low is None else f" {_interval(score.reward_low, score.reward_high)}"
    passed = "".join(f", pass@{k} {share:.3f}" for k, share in score.pass_at.items() if k != "1")
    failed = f"; {score.num_failed} of {score.num_episodes} episodes failed" if score.num_failed else ""
    return (
        f"reward {score.reward:.3f}{sure} on {asked}{passed} ({_METHODS[score.method]}); "
        f"{score.turns:.1f} turns and {score.tokens:.0f} tokens an episode{failed}"
    )


def _describe_causes(causes: Mapping[str, int]) -> list[str]:
    most = sorted(causes.items(), key=lambda item: -item[1])
    lines = [f"  {count} times: {cause}" for cause, count in most[:_MAX_CAUSES]]
    return lines + ([f"  and {len(most) - _MAX_CAUSES} other causes"] if len(most) > _MAX_CAUSES else [])


def _interval(low: float | None, high: float | None) -> str:
    return f"[{low:.3f}, {high:.3f}]"
