"""What controllers decided about episodes in flight: how often, by kind, and the numbers they came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.report.actor_logs import ActorLogs, actor_log_paths, read_actor_logs
from forebay.report.load import RunRecord
from forebay.report.panels import Cell, Note, Panel, Part, Table
from forebay.report.text import number
from forebay.telemetry.summary import EpisodeDecisions, RunSummary

_COUNTED: Final = "decisions."


def decisions_of(logs: ActorLogs) -> dict[str, EpisodeDecisions]:
    """Return what was decided, by environment; empty if the number of episodes was fixed."""
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, count in logs.counters.items():
        if name.startswith(_COUNTED):
            environment, _, kind = name.removeprefix(_COUNTED).rpartition(".")
            counts[environment][kind] = count
    return {
        name: EpisodeDecisions(
            allowed=logs.allowed.get(name), counts=dict(sorted(counts[name].items(), key=lambda one: -one[1]))
        )
        for name in sorted({*counts, *logs.allowed})
    }


def with_decisions(summary: RunSummary, logs: Path) -> RunSummary:
    """Return a summary with what the actors that log to a directory decided; None for a fixed number."""
    decided = decisions_of(read_actor_logs(actor_log_paths(logs), 0.0, 1.0))
    return msgspec.structs.replace(summary, decisions=decided or None)


def sentence_of(environment: str, decided: EpisodeDecisions) -> str:
    """Return one line, such as `` `tool`: 96 episodes at last; 5 decisions: 4 more, 1 slower ``."""
    at_last = "not recorded" if decided.allowed is None else f"{number(decided.allowed)} episodes at last"
    total = sum(decided.counts.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in decided.counts.items())
    return f"`{environment}`: {at_last}; {total} decisions" + (f": {kinds}" if kinds else "")


def decision_panel(runs: Sequence[RunRecord]) -> Panel | None:
    """Return how many episodes in flight the actors settled on, and why; None if all numbers were fixed."""
    found = [(run, decisions_of(run.actors)) for run in runs]
    if not any(decided for _, decided in found):
        return None
    parts: list[Part] = []
    for run, decided in found:
        name = f"{run.name}: " if len(runs) > 1 else ""
        if not decided:
            parts.append(Note(text=f"{name}the number of episodes in flight was fixed."))
            continue
        parts += [Note(text=f"{name}{sentence_of(*one)}.") for one in decided.items()]
        kinds = sorted({kind for one in decided.values() for kind in one.counts})
        rows = tuple(
            (
                Cell(environment),
                Cell("–" if one.allowed is None else number(one.allowed)),
                *(Cell(number(one.counts.get(kind, 0))) for kind in kinds),
            )
            for environment, one in decided.items()
        )
        title = f"{name}Episodes allowed at last, and decisions by kind"
        parts.append(Table(title=title, headers=("environment", "allowed", *kinds), rows=rows))
    return Panel(
        anchor="decisions",
        label="Episodes in flight",
        title="How many episodes in flight, and why",
        lead="The actors look for the number that keeps the learner fed and that the environments serve. "
        "`refused` and `slower` name an environment that limits; `held` a limit that was kept. "
        "The reason of each decision is a line of the actors' logs.",
        parts=tuple(parts),
    )
