"""What takes most of a token's life, and what would shorten it: one plain sentence.

Where the learner does not starve, a long stage costs freshness and not time, and the sentence says so; where
it starves, the advice follows the cause that it waited for.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.life_table import Life
from forebay.telemetry.residence import Stage
from forebay.telemetry.window import WindowFigures

# From this share of its time on, a learner counts as starved.
STARVED: Final = 0.05
# Both are the environment's, which is named instead.
_ENVIRONMENT: Final[tuple[Stage, ...]] = ("reset", "environment")
_WHERE: Final[dict[Stage, str]] = {
    "admission": "waiting for a free place in an actor",
    "retries": "in attempts that failed before the one that was trained",
    "generator_queue": "waiting for a slot of the generator",
    "generating": "in the generator",
    "other": "between environment and generator (templates, HTTP, the actor's event loop)",
    "group": "waiting for slower members of its group",
    "buffer": "in the buffer",
    "packing": "being packed and recorded",
    "handover": "packed, waiting for the step before",
    "training": "in the training step",
}
_IF_STARVED: Final[dict[Stage, str]] = {
    "admission": "raise {episodes} or actors.processes",
    "retries": "see the failures; each of them costs an episode",
    "generator_queue": "raise generator.slots or add a generator",
    "generating": "a faster or a second generator, or a smaller actors.max_turn_tokens",
    "environment": "let more episodes run at once, as the verdict says, or make it faster",
    "other": "raise actors.processes, or give the actors more cores",
    "group": 'set objective.siblings to "finished" or "pairs", or lower episode_timeout_s',
    "buffer": "settled groups wait for the rest of their batch: let more episodes run at once, as the "
    "verdict says, or lower batching.groups",
    "packing": "give packing a core of its own, or raise batching.prefetch",
    "handover": "lower batching.prefetch",
    "training": "what the learner starves for comes before it, as the verdict says",
}
_IF_FED: Final[dict[Stage, str]] = {
    "admission": "nothing is lost by it: what waits there is not sampled yet",
    "retries": "see the failures; each of them costs an episode",
    "generator_queue": "the learner does not wait for it; fewer episodes at once would do as well",
    "generating": "the learner does not wait for it: other episodes run meanwhile",
    "environment": "the learner does not wait for it: other episodes run meanwhile",
    "other": "the learner does not wait for it; more actor processes would make tokens fresher",
    "group": 'the learner does not wait for it; objective.siblings = "finished" would make tokens fresher',
    "buffer": "the learner is the bottleneck: fewer batches in flight (staleness.credit) make tokens "
    "fresher, a faster step trains more",
    "packing": "the learner does not wait for it",
    "handover": "the learner is the bottleneck: a smaller batching.prefetch makes tokens fresher, a faster "
    "step trains more",
    "training": "the learner is the bottleneck: only a faster step trains more",
}


class Dominant(NamedTuple):
    """What takes most of a token's life.

    Attributes:
        place: A stage; the reset of an environment counts as its steps.
        environment: Which environment, where the place is one; else empty.
        share: Its share of the life of all trained tokens, 0 to 1.
    """

    place: Stage
    environment: str
    share: float


def dominant_of(table: LifeTable) -> Dominant | None:
    """Return what takes most of a token's life; None if nothing was trained."""
    life = table.whole
    if not life.token_s > 0:
        return None
    found = [Dominant(place, "", life.share(place)) for place in _WHERE]
    found += [
        Dominant("environment", name, _share_of(mine, life)) for name, mine in table.environments.items()
    ]
    return max(found, key=lambda one: one.share)


def life_sentence(table: LifeTable | None, window: WindowFigures) -> str:
    """Return what takes most of a token's life and what to change, without a full stop; empty if unknown.

    Args:
        table: The lives of the window.
        window: What else was measured over it.
    """
    dominant = None if table is None else dominant_of(table)
    if table is None or dominant is None:
        return ""
    where = f"in environment `{dominant.environment}`" if dominant.environment else _WHERE[dominant.place]
    mean_s = table.whole.mean_s or 0.0
    head = f"{100 * dominant.share:.0f} % of a token's life of {_seconds(mean_s)} is spent {where}"
    return f"{head}: {_advice(dominant.place, window)}"


def _advice(place: Stage, window: WindowFigures) -> str:
    if window.shares.share("starved") < STARVED:
        return _IF_FED[place]
    waited_for = max(window.waits, key=lambda cause: window.waits[cause], default="")
    if place == "buffer" and waited_for == "urgent":
        return "an older group still runs that nothing may overtake; raise staleness.max_staleness"
    if place == "admission" and waited_for == "episodes":
        return "enough groups run, but they take long; see the verdict"
    return _IF_STARVED[place].format(episodes=window.limits.episodes_setting)


def _share_of(mine: Life, life: Life) -> float:
    return mine.share(*_ENVIRONMENT) * mine.token_s / life.token_s


def _seconds(value_s: float) -> str:
    digits = 0 if value_s >= 9.5 else 1 if value_s >= 0.95 else 2
    return f"{value_s:.{digits}f} s"
