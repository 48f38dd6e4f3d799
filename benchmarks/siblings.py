"""What is gained if the episodes of a task do not wait for one another, and what bias that costs.

    .venv/bin/python benchmarks/siblings.py --json [--quick]

`busy`: the share of time that the learner computes, by `objective.siblings`, `staleness.on_stale` and
`max_staleness`: the real store, dispatcher, feed and rules on a virtual clock, so that the machine does not
matter. `bias`: expectation and variance of the estimated policy gradient beside the true one, on small tasks
of which every course is enumerated: no sampling error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.siblings_study.bias import PROBLEMS, RULES, Rule, by_size, report, worth_of_length
from benchmarks.siblings_study.world import Load, World
from forebay.objectives.settings import ObjectiveSettings
from forebay.staleness import OnStale, StalenessSettings, credit_batches

_OBJECTIVES: Final = {
    "all": ObjectiveSettings(advantage="leave_one_out"),
    "pairs": ObjectiveSettings(advantage="leave_one_out", siblings="pairs"),
    "finished": ObjectiveSettings(advantage="leave_one_out", siblings="finished"),
}
_ON_STALE: Final[tuple[OnStale, ...]] = ("wait", "drop", "mask")
_FOUR: Final = 4
_WARMUP: Final = 0.2


class Size(NamedTuple):
    """How long is simulated."""

    batches: int
    seeds: int


class Busy(NamedTuple):
    """Of one run, once it is under way and before its end comes near.

    Attributes:
        busy: Share of time that the learner computes.
        fresh: Of the tokens that episodes sampled, the share that was trained.
        rejected: Of the episodes, the share that was rejected.
    """

    busy: float
    fresh: float
    rejected: float


def measure(siblings: Rule, on_stale: OnStale, max_staleness: int, batches: int, seed: int) -> Busy:
    """Simulate one run."""
    settings = StalenessSettings(max_staleness=max_staleness, on_stale=on_stale)
    world = World(Load(), _OBJECTIVES[siblings], settings, batches, seed)
    world.run()
    # Nothing is dispatched any more for what comes after the last batch.
    first, last = round(_WARMUP * batches), batches - credit_batches(settings)
    wall_s = world.taken_s[last] - world.taken_s[first]
    counters = world.store.stats().counters
    rejected = sum(count for name, count in counters.items() if name.startswith("trajectories.rejected."))
    share = rejected / (rejected + counters["trajectories.recorded"])
    fresh, sampled = 0, 0
    for batch in world.batches[first:last]:
        oldest = batch.entry.now.version - max_staleness
        versions = [
            span.version.version
            for group in batch.groups
            for trajectory in group.trajectories
            for span in trajectory.sequences[0].version_spans
        ]
        sampled += len(versions)
        fresh += sum(version >= oldest for version in versions)
    busy = (last - first) * world.load.step_s / wall_s
    return Busy(busy, fresh / sampled * (1.0 - share), share)


def measure_all(size: Size, staleness: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return a row for every rule, and for `all` with four more versions."""
    cases = list(itertools.product(staleness, _ON_STALE, RULES))
    cases += [(max(staleness) + _FOUR, on_stale, "all") for on_stale in _ON_STALE]
    rows = []
    for max_staleness, on_stale, siblings in cases:
        runs = [measure(siblings, on_stale, max_staleness, size.batches, seed) for seed in range(size.seeds)]
        busy = [run.busy for run in runs]
        rows.append(
            {
                "max_staleness": max_staleness,
                "on_stale": on_stale,
                "siblings": siblings,
                "busy": round(statistics.mean(busy), 3),
                "busy_low": round(min(busy), 3),
                "busy_high": round(max(busy), 3),
                "useful": round(statistics.mean(run.busy * run.fresh for run in runs), 3),
                "rejected": round(statistics.mean(run.rejected for run in runs), 3),
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def lifts(rows: list[dict[str, Any]], staleness: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return what each rule adds to the busy share of `all`, beside what four more versions add."""
    busy = {(row["max_staleness"], row["on_stale"], row["siblings"]): row["busy"] for row in rows}
    return [
        {
            "max_staleness": at,
            "on_stale": on_stale,
            "all": busy[at, on_stale, "all"],
            **{
                rule: round(busy[at, on_stale, rule] - busy[at, on_stale, "all"], 3)
                for rule in ("finished", "pairs")
            },
            "four_more_versions": round(busy[at + _FOUR, on_stale, "all"] - busy[at, on_stale, "all"], 3),
        }
        for at, on_stale in itertools.product(staleness, _ON_STALE)
    ]


def main() -> None:
    """Simulate, enumerate, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="one short run each: within a minute")
    options = parser.parse_args()
    size = Size(batches=32, seeds=1) if options.quick else Size(batches=160, seeds=3)
    staleness = (4, 8)
    rows = measure_all(size, staleness)
    even, guessing = (1 / 3, 1 / 3, 1 / 3), (0.6, 0.2, 0.2)
    result = {
        "load": Load()._asdict() | {"answers": Load().answers.model_dump()},
        **size._asdict(),
        "busy": rows,
        "lift": lifts(rows, staleness),
        "bias": {problem.name: report(problem) for problem in PROBLEMS},
        "bias_by_size": by_size(),
        "worth_of_length": {
            "third_of_answers_guessed": round(worth_of_length(even), 4),
            "60_percent_guessed": round(worth_of_length(guessing), 4),
        },
    }
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
