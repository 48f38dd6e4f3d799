"""Whether slow tasks are trained as much as quick ones: what was started, accepted and trained, by rule.

    .venv/bin/python benchmarks/bias.py --json [--quick]
    .venv/bin/python benchmarks/bias.py --write docs/explanation/length-bias.md

The real store, dispatcher, feed, rules and packer run on a virtual clock: the machine does not matter. Half
of the tasks take longer. `share` is what they have of the trained tokens, each kind's divided by the number
of its turns: 0.5 if no kind is favored. One JSON object on stdout; `--write` puts the tables into a page,
between its marks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bias_study.records import distribution, share_of
from benchmarks.bias_study.world import Kind, Load, Rule, World
from forebay.envs.latency import LatencySettings

BEGIN, END = "<!-- begin tables -->", "<!-- end tables -->"
ADMITTED: Final = (Rule("wait", "wait"), Rule("drop", "drop"), Rule("mask", "mask"))
DISCARDING: Final = (
    Rule("discard, pose again", "drop", admits=False),
    Rule("discard, go on", "drop", admits=False, poses_again=False),
)


class Scenario(NamedTuple):
    """Tasks of two kinds, the second one slow.

    Attributes:
        name: What it is called.
        says: What it is.
        load: What is run; its second kind of task is the slow one.
        batches: Batches of a run, and of a quick one.
    """

    name: str
    says: str
    load: Load
    batches: tuple[int, int]

    @property
    def slow(self) -> str:
        """The slow kind."""
        return self.load.kinds[1].name


def case_37(turns: int, shared: bool = False) -> Load:
    """Return the load of a known fault: episodes of 0.05 and 0.6 s, steps of 0.1 s, at most 2 versions old.

    Args:
        turns: Model calls that the time of an episode is divided among.
        shared: Whether each kind of task is an environment of its own.
    """
    return Load(
        (Kind("fast", turns, 0.05 / turns, 0.2), Kind("slow", turns, 0.6 / turns, 0.2)),
        shared=shared,
        step_s=0.1,
        groups=4,
        group_size=1,
        max_staleness=2,
        delays=LatencySettings(mean_s=1.0, sigma=0.0),
        tick_s=0.02,
    )


def tools(max_staleness: int) -> Load:
    """Return tasks with tools: easy ones of 3 turns of a second, hard ones of 9 of two; steps of 4 s."""
    kinds = (Kind("easy", 3, 1.0, 0.1), Kind("hard", 9, 2.0, 0.6))
    return Load(kinds, max_staleness=max_staleness)


SCENARIOS: Final = (
    Scenario(
        "fast_and_slow_1", "0.05 and 0.6 s in one turn, steps of 0.1 s, at most 2 old", case_37(1), (60, 60)
    ),
    Scenario("fast_and_slow_6", "the same time in six turns", case_37(6), (60, 60)),
    Scenario("tools_4", "easy 3 x 1 s, hard 9 x 2 s, steps of 4 s, at most 4 old", tools(4), (100, 20)),
    Scenario("tools_8", "the same, at most 8 old", tools(8), (100, 20)),
)


def run_scenario(scenario: Scenario, *, quick: bool, shared: bool) -> list[dict[str, Any]]:
    """Return what each rule does to a scenario.

    Args:
        scenario: What is run.
        quick: Whether a shorter run of one seed is enough.
        shared: Whether each kind of task is an environment of its own; then what others do is left out.
    """
    load = scenario.load._replace(shared=shared)
    # Without variance of the delays, seeds differ in nothing but the rewards.
    seeds = (0,) if quick or not load.delays.sigma else (0, 1, 2)
    rows = []
    for rule in ADMITTED if shared else ADMITTED + DISCARDING:
        print(f"{scenario.name}{' shared' if shared else ''}: {rule.name}", file=sys.stderr)
        runs = [run_rule(load, rule, scenario.batches[quick], seed, scenario.slow) for seed in seeds]
        rows.append({"rule": rule.name, **_mean(runs)})
    return rows


def run_rule(load: Load, rule: Rule, batches: int, seed: int, slow: str) -> dict[str, Any]:
    """Return the figures of one run."""
    world = World(load, rule, batches, seed)
    world.run()
    told = world.told
    turns = {kind.name: kind.turns for kind in load.kinds}
    per_turn = {name: sum(told.fresh[name].values()) / count for name, count in turns.items()}
    rejected = sum(n for name, n in world.counters.items() if name.startswith("trajectories.rejected."))
    trained_tokens = sum(episode.tokens for episode in told.trained)
    return {
        "share": share_of(slow, per_turn),
        "busy": told.busy,
        "started": distribution(told.started, slow),
        "accepted": distribution(told.accepted, slow),
        "trained": distribution(told.trained, slow),
        "discarded_share": (rejected + told.discarded.total()) / max(len(told.accepted), 1),
        "masked_share": told.masked_tokens / max(told.masked_tokens + trained_tokens, 1),
        "fresh_by_turn": {
            name: told.fresh_by_turn(name, count, load.turn_tokens) for name, count in turns.items()
        },
    }


def report(quick: bool) -> dict[str, Any]:
    """Return everything that is measured."""
    return {
        scenario.name: {
            "says": scenario.says,
            "max_staleness": scenario.load.max_staleness,
            "one_environment": run_scenario(scenario, quick=quick, shared=False),
            "own_environments": run_scenario(scenario, quick=quick, shared=True),
        }
        for scenario in SCENARIOS
    }


def tables(measured: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = []
    for scenario in measured.values():
        says = scenario["says"]
        head = f"| {' | '.join(_COLUMNS)} |"
        lines += [f"**{says[0].upper()}{says[1:]}.**", "", head, "|---" * len(_COLUMNS) + "|"]
        for where, key in (("one environment", "one_environment"), ("two environments", "own_environments")):
            lines += [_row(where, row) for row in scenario[key]]
        lines.append("")
    return "\n".join(lines)


_COLUMNS: Final = (
    "tasks are in",
    "rule",
    "share",
    "tokens",
    "difficulty",
    "discarded",
    "masked",
    "started that are slow",
    "busy",
)


def _row(where: str, row: dict[str, Any]) -> str:
    started, trained = row["started"], row["trained"]
    cells = (
        where,
        row["rule"],
        f"{row['share']:.2f}",
        f"{trained['tokens']:.1f} of {started['tokens']:.1f}",
        f"{trained['difficulty']:.2f} of {started['difficulty']:.2f}",
        f"{100 * row['discarded_share']:.0f} %",
        f"{100 * row['masked_share']:.0f} %",
        f"{100 * started['slow_share']:.0f} %",
        f"{row['busy']:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _mean(runs: Sequence[Any]) -> Any:
    """Return the mean of alike trees of numbers, leaf by leaf."""
    first = runs[0]
    if isinstance(first, dict):
        return {name: _mean([run[name] for run in runs]) for name in first}
    if isinstance(first, list):
        return [_mean(values) for values in zip(*runs, strict=True)]
    return None if None in runs else round(statistics.fmean(runs), 4)


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="shorter runs of one seed")
    parser.add_argument("--write", type=Path, help="put the tables into this page")
    options = parser.parse_args()
    measured = report(options.quick)
    if options.write:
        page = options.write.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        options.write.write_text(f"{before}{BEGIN}\n{tables(measured)}{END}{after}")
    print(json.dumps(measured) if options.json else tables(measured))


if __name__ == "__main__":
    main()
