"""What the actors logged, in bounded memory: counters over the whole run and its end, figures over time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.report.history import RECENT_S
from forebay.telemetry.little import Flow
from forebay.telemetry.metrics import read_metrics

NUM_BINS: Final = 300
_PERCENTILES: Final = (".p50", ".p95", ".p99")
# What is no counter: gauges, and figures of one interval.
_GAUGES: Final = frozenset(("step", "live"))
_SEEN: Final = "seen."
_ALLOWED: Final = "episodes_allowed."
_NO_TOTALS: Final = ("finish.", "ended.", _ALLOWED)
_FIGURES: Final = (*_PERCENTILES, ".max", ".mean")


class ActorBin(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time: episodes in flight, and mean percentiles by the name of the figure."""

    time_s: float
    live: float | None
    figures: Mapping[str, float]


class ActorLogs(msgspec.Struct, frozen=True, kw_only=True):
    """What all actors of a run logged.

    Args:
        bins: By time, the earliest first; empty if nothing was logged.
        counters: What each counter counted in all, over all processes and their restarts.
        recent: The same over the last five minutes that were logged.
        figures: Mean of each percentile over all lines that have it.
        num_actors: Processes that logged.
        inside: How many episodes were seen in each place, all actors together; nothing passed through.
        allowed: Episodes in flight that controllers allowed at last, all actors together, by environment;
            empty if their number was fixed.
    """

    bins: tuple[ActorBin, ...] = ()
    counters: Mapping[str, int] = {}
    recent: Mapping[str, int] = {}
    figures: Mapping[str, float] = {}
    num_actors: int = 0
    inside: Mapping[str, Flow] = {}
    allowed: Mapping[str, float] = {}

    @property
    def live(self) -> float | None:
        """Mean number of episodes in flight over the second half of the run; None if not logged."""
        known = [b.live for b in self.bins[len(self.bins) // 2 :] if b.live is not None]
        return sum(known) / len(known) if known else None


class _Sums:
    def __init__(self) -> None:
        self.live: defaultdict[str, list[float]] = defaultdict(list)
        self.figures: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, actor: str, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if name == "live":
                self.live[actor].append(value)
            elif name.endswith(_PERCENTILES) and isinstance(value, int | float):
                self.figures[name][0] += value
                self.figures[name][1] += 1

    def mean_live(self) -> float | None:
        means = [sum(values) / len(values) for values in self.live.values()]
        return sum(means) if means else None

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.figures.items()}


def read_actor_logs(paths: Sequence[Path], begin_s: float, end_s: float) -> ActorLogs:
    """Read the logs of all actors.

    Args:
        paths: `actor-N.jsonl`, each with the file that it replaced before it.
        begin_s: Where the first bin begins; earlier lines count in it.
        end_s: Where the last bin ends; later lines count in it.
    """
    width_s = max(end_s - begin_s, 1e-9) / NUM_BINS
    bins: defaultdict[int, _Sums] = defaultdict(_Sums)
    overall, counters, recent, actors = _Sums(), Counter[str](), Counter[str](), set()
    before: defaultdict[str, dict[str, int]] = defaultdict(dict)
    inside: defaultdict[str, dict[str, Flow]] = defaultdict(dict)
    allowed: dict[str, dict[str, float]] = {}
    seen_s: dict[str, float] = {}
    for path in paths:
        actor = path.name.split(".")[0]
        actors.add(actor)
        for line in read_metrics(path):
            time_s = line.get("time_s")
            if not isinstance(time_s, int | float):
                continue
            index = min(max(int((time_s - begin_s) / width_s), 0), NUM_BINS - 1)
            bins[index].add(actor, line)
            overall.add(actor, {k: v for k, v in line.items() if k != "live"})
            gained = _gained(before[actor], line)
            if begin_s <= seen_s.get(actor, -math.inf) and time_s <= end_s:
                _see(inside[actor], gained)
            seen_s[actor] = time_s
            counters.update(gained)
            allowed[actor] = _allowed(line) or allowed.get(actor, {})
            if time_s > end_s - RECENT_S:
                recent.update(gained)
    return ActorLogs(
        bins=tuple(_bin(begin_s + (i + 0.5) * width_s, bins[i]) for i in sorted(bins)),
        counters=dict(counters),
        recent=dict(recent),
        figures=overall.means(),
        num_actors=len(actors),
        inside=_together(inside.values()),
        allowed=_sum(allowed.values()),
    )


def actor_log_paths(logs: Path) -> list[Path]:
    """Return the actors' logs in a directory, those that rotation replaced first."""
    current = sorted(logs.glob("actor-*.jsonl"))
    pairs: Iterable[tuple[Path, Path]] = ((path.with_name(f"{path.name}.1"), path) for path in current)
    return [path for pair in pairs for path in pair if path.is_file()]


def _bin(time_s: float, sums: _Sums) -> ActorBin:
    return ActorBin(time_s=time_s, live=sums.mean_live(), figures=sums.means())


def _allowed(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the episodes of each environment that a line says are allowed."""
    return {
        name.removeprefix(_ALLOWED): float(value)
        for name, value in line.items()
        if name.startswith(_ALLOWED) and isinstance(value, int | float)
    }


def _sum(of_actors: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total = defaultdict[str, float](float)
    for found in of_actors:
        for name, value in found.items():
            total[name] += value
    return dict(total)


def _see(seen: dict[str, Flow], gained: Mapping[str, int]) -> None:
    """Add what an actor saw of where its episodes are."""
    for name, number in gained.items():
        if name.startswith(_SEEN):
            place = name.removeprefix(_SEEN)
            squared = gained.get(f"seen_squared.{place}", 0)
            flow = Flow(0, 0.0, gained.get("looks", 0), number, squared)
            seen.setdefault(place, Flow()).merge(flow)


def _together(of_actors: Iterable[Mapping[str, Flow]]) -> dict[str, Flow]:
    """Return what all actors saw as if one had: means and variances add up; a dead one saw nothing inside."""
    found: defaultdict[str, list[Flow]] = defaultdict(list)
    for seen in of_actors:
        for place, flow in seen.items():
            found[place].append(flow)
    together = {}
    for place, flows in found.items():
        samples = max(flow.samples for flow in flows)
        if samples:
            mean = sum(flow.seen for flow in flows) / samples
            variance = sum(flow.seen_squared / samples - (flow.seen / samples) ** 2 for flow in flows)
            squared = max(variance, 0.0) + mean * mean
            together[place] = Flow(0, 0.0, samples, samples * mean, samples * squared)
    return together


def _gained(before: dict[str, int], line: Mapping[str, Any]) -> dict[str, int]:
    """Return what each counter gained since the line before; a smaller value is that of a new process."""
    gained: dict[str, int] = {}
    for name, value in line.items():
        is_counter = not (name in _GAUGES or name.startswith(_NO_TOTALS) or name.endswith(_FIGURES))
        if value.__class__ is not int or not is_counter:
            continue
        earlier = before.get(name, 0)
        gained[name] = value - earlier if value >= earlier else value
        before[name] = value
    return gained
