"""What limits a run, over all measured parts, in sentences that say what to change and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from forebay.cli.transcript import visible
from forebay.planner.audit_limits import Demand, Limit, demand_of, limits_of
from forebay.planner.audit_statistics import Estimate
from forebay.planner.profile import PARTS, Profile
from forebay.report.text import number, percent, seconds

_NEEDED: Final = ("environments", "generator", "learner")


def limit_sentences(profile: Profile) -> list[str]:
    """Return what limits the run and what to change; none for a profile of environments alone.

    Args:
        profile: All that is known.
    """
    if profile.parts in ((), ("environments",)):
        return []
    demand = demand_of(profile)
    if demand is None:
        return [f"Not measured: {_missing(profile)}. What limits a run is known only beside its learner."]
    limits = limits_of(profile)
    return [
        _demand(demand, profile),
        *_verdict(limits, profile),
        *_weights(profile, demand),
        *([f"Not measured: {missing}."] if (missing := _missing(profile)) else []),
    ]


def _missing(profile: Profile) -> str:
    return ", ".join(part for part in PARTS if part not in profile.parts)


def _demand(demand: Demand, profile: Profile) -> str:
    assert profile.learner is not None
    samples = profile.learner.levels[-1].step_s.num_samples
    return (
        f"The learner takes {seconds(demand.step_s.value)} a step ({_between(demand.step_s, seconds)}, "
        f"{samples} steps) for {demand.trajectories} trajectories, and "
        f"{seconds(profile.learner.overhead_s.mean)} between two: to be busy all the time it needs "
        f"{number(demand.trajectories_per_s.value)} trajectories/s, for which "
        f"{number(demand.tokens_per_s.value)} tokens/s must be sampled."
    )


def _verdict(limits: list[Limit], profile: Profile) -> Iterator[str]:
    binding = [limit for limit in limits if limit.is_reached]
    if binding and binding[0].share.value < 1.0:
        yield _limiting(binding[0], profile)
        yield from (_also(limit) for limit in binding[1:] if limit.share.value < 1.0)
    elif limits and limits[0].share.value >= 1.0:
        first, least = limits[0], "" if limits[0].is_reached else "at least "
        yield (
            f"Nothing that was measured limits it. The least to spare has {_who(first)}: {least}"
            f"{number(first.share.value)} times what is needed ({_between(first.share, number)})."
        )
    yield from (_unsure(limit) for limit in binding if limit.share.low < 1.0 < limit.share.high)
    yield from (_open(limit, profile) for limit in limits if not limit.is_reached and limit.share.value < 1.0)


def _limiting(limit: Limit, profile: Profile) -> str:
    busy = Estimate(*(min(1.0, share) for share in (limit.share.value, limit.share.low, limit.share.high)))
    text = (
        f"{_can(limit)}: it limits. The learner is busy at most {percent(busy.value)} of the time "
        f"({_between(busy, percent)}). "
    )
    return text + _remedy(limit, profile)


def _also(limit: Limit) -> str:
    return f"{_can(limit)}: that is too little as well."


def _can(limit: Limit) -> str:
    ends = _between(limit.can, number)
    match limit.part:
        case "generator":
            return (
                f"This generator yields {number(limit.can.value)} tokens/s ({ends}) at {limit.at} requests "
                f"at a time, and {number(limit.needed)} are needed"
            )
        case "environment":
            return (
                f"Environment {visible(limit.name)} does {number(limit.can.value)} episodes/s ({ends}) and "
                f"no more from {limit.at} at a time on, and {number(limit.needed)} are needed"
            )
        case "store":
            return (
                f"The store takes in {number(limit.can.value)} results/s ({ends}), and "
                f"{number(limit.needed)} are needed"
            )


def _remedy(limit: Limit, profile: Profile) -> str:
    count = math.ceil(limit.needed / limit.can.value) if limit.can.value > 0.0 else 0
    match limit.part:
        case "generator":
            return (
                f"Use {count} generators like it, shorter answers (actors.max_turn_tokens), or a machine "
                f"with more to give it; more staleness does not help against it."
            )
        case "environment":
            return (
                f"Remove its limit (see above what it is), use {count} of what stands behind it, or raise "
                f"the weight of other environments."
            )
        case "store":
            durability = profile.store.durability if profile.store is not None else ""
            softer = 'store.durability="os" if power loss may cost results, ' if durability == "fsync" else ""
            return f"Use {softer}a faster disk, or fewer and longer trajectories."


def _unsure(limit: Limit) -> str:
    return (
        f"Whether {_who(limit)} suffices is not sure: what it can do is {number(limit.share.low)} to "
        f"{number(limit.share.high)} times what is needed. A larger --seconds tells."
    )


def _open(limit: Limit, profile: Profile) -> str:
    share = limit.share.value
    at = math.ceil(limit.at / share) if share > 0.0 else 0
    if limit.part == "generator":
        return (
            f"This generator did {number(limit.can.value)} tokens/s at {limit.at} requests at a time and "
            f"might do more: {number(limit.needed)} are needed. Measure higher loads: --requests."
        )
    return (
        f"Environment {visible(limit.name)} did {number(limit.can.value)} episodes/s at {limit.at} at a "
        f"time, and {number(limit.needed)} are needed: about {at} at a time, if it keeps up. Measure whether "
        f"it does: --part environment --concurrency {limit.at},{at}."
    )


def _who(limit: Limit) -> str:
    return f"environment {visible(limit.name)}" if limit.name else f"the {limit.part}"


def _weights(profile: Profile, demand: Demand) -> Iterator[str]:
    if profile.weights is None:
        return
    found = profile.weights.first_token_s
    steps = found.mean / demand.cycle_s if demand.cycle_s else 0.0
    yield (
        f"New weights sample their first token {seconds(found.mean)} after they are handed over for "
        f"publication (1 in 20 after {seconds(found.quantile(0.95))}, {found.num_samples} publications): "
        f"{number(steps)} steps, which staleness grows by."
    )


def _between(found: Estimate, text: object) -> str:
    assert callable(text)
    if not math.isfinite(found.high):
        return "too few measurements for an interval"
    return f"95 % {text(max(0.0, found.low))} to {text(found.high)}"
