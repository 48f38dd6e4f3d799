"""What limits a run, over all parts: how much each could do, against what the learner needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from forebay.planner.audit_statistics import Estimate
from forebay.planner.distribution import Distribution
from forebay.planner.profile import EnvironmentProfile, GeneratorProfile, LearnerProfile, Profile

Limiter = Literal["generator", "environment", "store"]
_NORMAL_95: Final = 1.96
# A correction of the normal quantile that is within 2 % of Student's from 4 samples on.
_STUDENT_CORRECTION: Final = 2.4


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner needs to be busy all the time.

    Args:
        step_s: Of the whole batch, with the interval of its mean.
        cycle_s: The same and what lies between two steps.
        trajectories: Of a batch.
        trajectories_per_s: What it consumes.
        tokens: Sampled tokens of a batch.
        tokens_per_s: What generators must sample.
    """

    step_s: Estimate
    cycle_s: float
    trajectories: int
    trajectories_per_s: Estimate
    tokens: float
    tokens_per_s: Estimate


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What one part could do.

    Args:
        part: Which.
        name: Of the environment; empty for others.
        at: Requests or episodes at a time where it does this; 0 where that means nothing.
        can: What it does a second: tokens for the generator, episodes else.
        needed: What is needed a second.
        share: What it can do over what is needed; below 1 it limits. With the interval of both.
        is_reached: Whether more at a time gained nothing; else it might do more.
    """

    part: Limiter
    name: str = ""
    at: int = 0
    can: Estimate
    needed: float
    share: Estimate
    is_reached: bool = True


def demand_of(profile: Profile) -> Demand | None:
    """Return what the learner needs; None if it was not measured."""
    learner = profile.learner
    if learner is None:
        return None
    level = learner.levels[-1]
    step_s = mean_of(level.step_s)
    overhead_s = learner.overhead_s.mean
    count, tokens = level.trajectories, _sampled_tokens(profile, learner)
    return Demand(
        step_s=step_s,
        cycle_s=step_s.value + overhead_s,
        trajectories=count,
        trajectories_per_s=_per(count, step_s, overhead_s),
        tokens=tokens,
        tokens_per_s=_per(tokens, step_s, overhead_s),
    )


def limits_of(profile: Profile) -> list[Limit]:
    """Return what each part could do, the tightest first; none if the learner was not measured.

    Args:
        profile: What was measured.
    """
    demand = demand_of(profile)
    if demand is None:
        return []
    found = [*_generator(profile.generator, demand), *_environments(profile, demand)]
    if (store := profile.store) is not None:
        ends = store.puts_per_s_interval or (store.puts_per_s, store.puts_per_s)
        can = Estimate(store.puts_per_s, *ends)
        found.append(_limit("store", can, demand.trajectories_per_s))
    return sorted(found, key=lambda limit: limit.share.value)


def mean_of(found: Distribution) -> Estimate:
    """Return the mean of measured values with its 95 % interval, from their spread.

    Example:
        >>> from forebay.planner.distribution import sampled
        >>> mean_of(sampled([1.0, 1.0, 1.0]))
        Estimate(value=1.0, low=1.0, high=1.0)
    """
    n = found.num_samples
    if n < 2:
        return Estimate(found.mean, 0.0, math.inf)
    half = (_NORMAL_95 + _STUDENT_CORRECTION / (n - 1)) * found.deviation / math.sqrt(n - 1)
    return Estimate(found.mean, max(0.0, found.mean - half), found.mean + half)


def _per(count: float, step_s: Estimate, overhead_s: float) -> Estimate:
    slow, fast = step_s.high + overhead_s, step_s.low + overhead_s
    return Estimate(count / (step_s.value + overhead_s), count / slow, count / fast if fast else math.inf)


def _sampled_tokens(profile: Profile, learner: LearnerProfile) -> float:
    """Return the tokens that are sampled for a batch: those of episodes, or else those that are trained."""
    level = learner.levels[-1]
    traffic = profile.generator.traffic if profile.generator is not None else {}
    shares = {name: one.weight for name, one in profile.environments.items() if name in traffic}
    if not shares:
        shares = dict.fromkeys(traffic, 1.0)
    if not shares:
        return float(level.tokens)
    total = math.fsum(shares.values())
    mean = math.fsum(traffic[name].action_tokens.mean * weight / total for name, weight in shares.items())
    return level.trajectories * mean


def _generator(generator: GeneratorProfile | None, demand: Demand) -> Iterator[Limit]:
    # Of a batch that trains nothing, written by hand, no generator is too slow.
    if generator is None or demand.tokens_per_s.value <= 0.0:
        return
    best = max(generator.levels, key=lambda level: level.tokens_per_s)
    ends = best.tokens_per_s_interval or (best.tokens_per_s, best.tokens_per_s)
    found = _limit("generator", Estimate(best.tokens_per_s, *ends), demand.tokens_per_s)
    # Once all slots are full, more requests only wait.
    reached = generator.knee is not None or best.requests >= generator.slots
    at = min(generator.knee or best.requests, generator.slots)
    yield msgspec.structs.replace(found, at=at, is_reached=reached)


def _environments(profile: Profile, demand: Demand) -> Iterator[Limit]:
    total = math.fsum(one.weight for one in profile.environments.values())
    for name, one in profile.environments.items():
        turns = _turns(profile, name, one)
        best = max(one.levels, key=lambda level: level.steps_per_s, default=None)
        if best is None or turns <= 0.0:
            continue
        low, high = best.steps_per_s_interval or (best.steps_per_s, best.steps_per_s)
        can = Estimate(best.steps_per_s / turns, low / turns, high / turns)
        share = one.weight / total
        needed = demand.trajectories_per_s
        mine = Estimate(needed.value * share, needed.low * share, needed.high * share)
        found = _limit("environment", can, mine)
        yield msgspec.structs.replace(
            found, name=name, at=one.knee or best.concurrency, is_reached=one.knee is not None
        )


def _turns(profile: Profile, name: str, environment: EnvironmentProfile) -> float:
    """Return the steps of an episode as the model plays it, if it has; else as the audit of it did."""
    traffic = profile.generator.traffic if profile.generator is not None else {}
    return traffic[name].turns.mean if name in traffic else environment.turns.mean


def _limit(part: Limiter, can: Estimate, needed: Estimate) -> Limit:
    share = Estimate(
        can.value / needed.value,
        can.low / needed.high if math.isfinite(needed.high) else 0.0,
        can.high / needed.low if needed.low else math.inf,
    )
    return Limit(part=part, can=can, needed=needed.value, share=share)
