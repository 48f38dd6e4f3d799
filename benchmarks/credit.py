"""How busy credit, deadline and step time let a learner be: the product's own rules on a virtual clock.

    .venv/bin/python benchmarks/credit.py --json

Generation is taken to be plentiful. Episodes make one to three tool calls of a second (lognormal, sigma
0.5), one call in twenty takes eight times as long; a group settles with the slowest of its four members.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from typing import NamedTuple

from forebay.staleness import OutstandingGroup, StalenessSettings, choose_groups, dispatch_allowance
from forebay.trajectory import PolicyVersion

_GENERATE_S = 0.3
_WARMUP_STEPS, _STEPS = 15, 150


class Group(NamedTuple):
    """A group in flight: the version it began with, and when it settles."""

    start: int
    settles_s: float


class Setting(NamedTuple):
    """What is tried."""

    groups: int
    step_s: float
    credit: int
    deadline_s: float


def episode_s(rng: random.Random) -> float:
    """Draw the duration of one episode."""
    calls = rng.randint(1, 3)
    slow = [8.0 if rng.random() < 0.05 else 1.0 for _ in range(calls)]
    return _GENERATE_S + sum(_GENERATE_S + f * math.exp(rng.gauss(-0.125, 0.5)) for f in slow)


def simulate(setting: Setting, max_staleness: int, seed: int) -> tuple[float, float]:
    """Return the share of time that the learner computes, and the mean staleness of what it takes."""
    rng = random.Random(seed)
    rule = StalenessSettings(max_staleness=max_staleness, credit=setting.credit)
    in_flight: dict[str, Group] = {}
    now_s, began_s, num_dispatched = 0.0, 0.0, 0
    staleness: list[int] = []
    for version in range(_STEPS):
        for _ in range(dispatch_allowance(rule, setting.groups, len(in_flight))):
            slowest_s = min(max(episode_s(rng) for _ in range(4)), setting.deadline_s)
            in_flight[str(num_dispatched)] = Group(version, now_s + slowest_s)
            num_dispatched += 1
        while not (taken := _choose(in_flight, version, now_s, rule, setting.groups)):
            now_s = min(group.settles_s for group in in_flight.values() if group.settles_s > now_s)
        staleness += [version - in_flight.pop(name).start for name in taken]
        if version == _WARMUP_STEPS:
            began_s = now_s
        now_s += setting.step_s
    busy_s = (_STEPS - _WARMUP_STEPS) * setting.step_s
    return busy_s / (now_s - began_s), sum(staleness) / len(staleness)


def _choose(
    in_flight: dict[str, Group], version: int, now_s: float, rule: StalenessSettings, groups: int
) -> tuple[str, ...]:
    outstanding = [
        OutstandingGroup(
            group_id=name,
            serial=int(name),
            environment="tools",
            settled=group.settles_s <= now_s,
            start=PolicyVersion(0, group.start),
        )
        for name, group in in_flight.items()
    ]
    return choose_groups(outstanding, PolicyVersion(0, version), rule, groups).take


def main() -> None:
    """Simulate a grid, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument("--max-staleness", type=int, default=8)
    options = parser.parse_args()
    rows = []
    for groups, step_s in ((16, 1.6), (24, 2.4)):
        for deadline_s in (math.inf, 20.0, 15.0, 12.0):
            for credit in (4, 5, 6, options.max_staleness + 1):
                setting = Setting(groups, step_s, credit, deadline_s)
                runs = [simulate(setting, options.max_staleness, seed) for seed in range(3)]
                busy, staleness = (sum(values) / len(values) for values in zip(*runs, strict=True))
                rows.append(
                    setting._asdict() | {"busy": round(busy, 3), "staleness_mean": round(staleness, 2)}
                )
                print(rows[-1], file=sys.stderr)
    if options.json:
        for row in rows:
            row["deadline_s"] = row["deadline_s"] if math.isfinite(row["deadline_s"]) else None
        print(json.dumps({"max_staleness": options.max_staleness, "rows": rows}))


if __name__ == "__main__":
    main()
