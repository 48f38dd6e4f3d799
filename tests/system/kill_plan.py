"""Which processes of a run are killed, and when: a plan that follows from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from forebay.telemetry.faults import Point

Role = Literal["learner", "generator", "actor", "all", "server"]
# Between any two arrows of the loop, and within publishing, saving and resuming.
POINTS: tuple[Point, ...] = (
    "taken", "packed", "recorded", "stepped", "measured", "weights_writing", "weights_written",
    "weights_visible", "published", "checkpoint_writing", "checkpoint_written", "checkpoint_installed",
    "checkpointed", "rewound", "replayed",
)  # fmt: skip
RESUMING = ("rewound", "replayed")


@dataclass(frozen=True)
class Kill:
    """One planned kill -9; a server is started again at once.

    Args:
        step: It happens when this step has been trained.
        role: Who dies.
        point: Where in its loop the learner dies; None for wherever it is.
        delay_s: Further wait of a kill that has no point.
        again_s: Kills the role a second time, this long after the first: in the middle of coming back.
        member: Of a learner of several processes, the one that dies; None for all of them.
    """

    step: int
    role: Role
    point: Point | None = None
    delay_s: float = 0.0
    again_s: float | None = None
    member: int | None = None


def plan_kills(
    num_kills: int,
    seed: int,
    points: tuple[Point, ...] = POINTS,
    gap_steps: int = 5,
    *,
    served: bool = False,
    members: int = 1,
) -> tuple[Kill, ...]:
    """Plan kills from a seed: half of them at points of the loop, the others at random moments.

    Args:
        num_kills: How many.
        seed: Decides who dies when.
        points: Where in its loop the learner dies.
        gap_steps: Steps between two kills.
        served: Whether the store lives on a server, which dies too.
        members: Processes of the learner; of several, every third kill is of one of them.
    """
    rng = random.Random(seed)
    order = rng.sample(points, len(points)) * (1 + num_kills // len(points))
    roles: list[Role] = ["all", "generator", "actor", "learner", *(["server"] if served else [])]
    rng.shuffle(roles)
    kills = []
    for number in range(num_kills):
        step = 2 + gap_steps * number + rng.randrange(gap_steps - 1)
        delay_s, again_s = rng.uniform(0.0, 0.5), rng.uniform(0.3, 5.0) if rng.random() < 0.25 else None
        if members > 1 and number % 3 == 0:
            kills.append(Kill(step, "learner", None, delay_s, again_s, rng.randrange(members)))
        elif number % 2 == 0:
            kills.append(Kill(step, "learner", order[number // 2]))
        else:
            kills.append(Kill(step, roles[number // 2 % len(roles)], None, delay_s, again_s))
    return tuple(kills)
