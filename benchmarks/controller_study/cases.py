"""The cases: environments, a learner, and what happens to them. The controller is told nothing of it."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

Limit = Literal["none", "slower", "thrashes", "refuses", "rate"]


class Place(NamedTuple):
    """An environment.

    Attributes:
        name: Its name.
        step_s: Mean time of a step.
        cv: Coefficient of variation of a step's time, lognormal.
        weight: Share of the batches.
        limit: What happens to more than `capacity` calls at once (`rate`: calls a second): nothing; they all
            become slower in proportion; they become slower still; those beyond are refused.
        capacity: See there.
    """

    name: str = "tool"
    step_s: float = 2.0
    cv: float = 0.5
    weight: float = 1.0
    limit: Limit = "none"
    capacity: float = math.inf


class Case(NamedTuple):
    """A run.

    Attributes:
        name: Its name.
        places: Environments.
        learner_s: (from step, seconds of a step): the learner's speed, which may change.
        slots: Requests that the generator answers at once; None for no limit.
        pauses: (step, seconds): steps after which the learner does nothing for so long.
        groups: Groups of a batch.
        group_size: Episodes of a group.
        turns: Turns of an episode.
        call_s: Time of a model call.
        max_staleness: Limit of staleness, in versions.
        steps: Batches trained.
        fixed: Numbers of episodes at once that are tried instead of the controller.
    """

    name: str
    places: tuple[Place, ...] = (Place(),)
    learner_s: tuple[tuple[int, float], ...] = ((0, 1.0),)
    slots: int | None = None
    pauses: tuple[tuple[int, float], ...] = ()
    groups: int = 8
    group_size: int = 4
    turns: int = 4
    call_s: float = 0.5
    max_staleness: int = 19
    steps: int = 400
    fixed: tuple[int, ...] = (16, 32, 48, 64, 96, 160, 256, 416)

    @property
    def learner_alone_s(self) -> float:
        """Seconds that the learner computes."""
        total_s = 0.0
        for index, (first, seconds) in enumerate(self.learner_s):
            last = self.learner_s[index + 1][0] if index + 1 < len(self.learner_s) else self.steps
            total_s += (min(last, self.steps) - first) * seconds
        return total_s


# Beyond these, what refuses refuses nearly everything.
_LOW: Final = (8, 12, 16, 20, 24, 32, 40, 48, 64)

CASES: Final = (
    Case("light tail"),
    Case("heavy tail", places=(Place(cv=2.0),), learner_s=((0, 2.0),), max_staleness=25, steps=250),
    Case("slower past 48 at once", steps=160, places=(Place(limit="slower", capacity=48),)),
    Case("thrashes past 48 at once", steps=160, places=(Place(limit="thrashes", capacity=48),)),
    Case("refuses past 48 at once", steps=160, places=(Place(limit="refuses", capacity=48),), fixed=_LOW),
    Case("refuses past 12 calls a second", steps=120, places=(Place(limit="rate", capacity=12),), fixed=_LOW),
    Case("generator of 24 slots", steps=250, slots=24, call_s=1.0),
    Case(
        "fast and slow environment",
        learner_s=((0, 2.0),),
        steps=250,
        places=(Place("fast", step_s=0.3), Place("slow", step_s=4.0, cv=1.0)),
    ),
    Case(
        "fast one refuses, slow one free",
        places=(Place("fast", step_s=0.3, limit="refuses", capacity=4), Place("slow", step_s=4.0)),
        fixed=(8, 16, 32, 64),
    ),
    Case("learner 3 times faster", learner_s=((0, 3.0), (130, 1.0))),
    Case("learner 3 times slower", learner_s=((0, 1.0), (250, 3.0))),
    Case("learner pauses 5 min", pauses=((200, 300.0),)),
)
