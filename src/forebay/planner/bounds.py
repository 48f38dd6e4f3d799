"""Bounds of a run in closed form, each with its arithmetic.

Words: B episodes a batch; L the step, W the overhead between two; E[T] the mean time of an episode.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import msgspec

from forebay.planner.profile import Profile
from forebay.planner.scenario import Scenario
from forebay.planner.simulation import Parts
from forebay.telemetry.sizing import episodes_needed, staleness_needed

_DRAWS: Final = 4000


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What no run can beat.

    Args:
        cycle_s: L + W, the least time per batch.
        busy: L / (L + W), the most that a learner can be busy.
        episode_s: E[T] with nobody waiting and the deadlines applied.
        group_s: E[T_group], the mean time of the slowest of a group.
        sync_busy: What one batch at a time gives: L / (L + W + E[T_batch]), all its episodes at once.
        rate: lambda = B / (L + W), episodes per second that keep the learner busy.
        episodes_in_flight: N* = lambda * E[T].
        max_staleness: S_min = E[T_group] / (L + W) + 1/2, rounded up.
        generator_rate: Episodes per second that the generators can do at most.
        environment_rate: The same of the environments, if they are limited; None if they are not.
        store_rate: The same of the store; None if it was not measured.
        staleness_rate: The most that max_staleness lets in: groups of at most S + 1 batches in flight.
        generator_share: Share of an episode's time that is model calls.
        lines: The arithmetic, a line each.
    """

    cycle_s: float
    busy: float
    episode_s: float
    group_s: float
    sync_busy: float
    rate: float
    episodes_in_flight: int
    max_staleness: int
    generator_rate: float
    environment_rate: float | None
    store_rate: float | None
    staleness_rate: float
    generator_share: float
    lines: tuple[str, ...]

    @property
    def ceiling(self) -> float:
        """The most that any of them lets the learner be busy, 0 to 1."""
        rates = [self.generator_rate, self.environment_rate, self.store_rate, self.staleness_rate]
        return self.busy * min([1.0, *(rate / self.rate for rate in rates if rate is not None)])


def bounds_of(profile: Profile, scenario: Scenario) -> Bounds:
    """Return the bounds of a scenario.

    Args:
        profile: What was measured: environments, a generator and a learner at least.
        scenario: The run.

    Raises:
        ConfigError: A part is missing.
    """
    parts = Parts(profile, scenario)
    size = scenario.episodes_per_batch
    step_s, overhead_s = parts.steps_s.mean(size), parts.overhead_s.mean
    cycle_s = step_s + overhead_s
    rate = size / cycle_s
    light = _times(parts, scenario, load=1)
    episode_s, group_s, batch_s = light.episode_s, light.group_s, light.batch_s
    generator_rate = _generator_rate(parts, scenario, light.calls)
    environment_rate = _environment_rate(parts)
    store_rate = None if profile.store is None else profile.store.puts_per_s
    in_flight = min(scenario.batches_in_flight * size, scenario.places)
    staleness_rate = in_flight / episode_s if episode_s else float("inf")
    needed = episodes_needed(size, cycle_s, episode_s)
    least = staleness_needed(group_s, cycle_s, scenario.updates_per_batch)
    found = Bounds(
        cycle_s=cycle_s,
        busy=step_s / cycle_s,
        episode_s=episode_s,
        group_s=group_s,
        sync_busy=step_s / (cycle_s + batch_s),
        rate=rate,
        episodes_in_flight=max(1, needed),
        max_staleness=least,
        generator_rate=generator_rate,
        environment_rate=environment_rate,
        store_rate=store_rate,
        staleness_rate=staleness_rate,
        generator_share=light.generator_s / episode_s if episode_s else 1.0,
        lines=(),
    )
    return msgspec.structs.replace(found, lines=tuple(_arithmetic(found, parts, scenario, light)))


def _arithmetic(found: Bounds, parts: Parts, scenario: Scenario, light: _Times) -> Iterator[str]:
    """Yield the bounds as sentences."""
    size, rate, cycle = scenario.episodes_per_batch, found.rate, f"{found.cycle_s:.3g}"
    step_s, group, episode = found.busy * found.cycle_s, f"{found.group_s:.3g}", f"{found.episode_s:.3g}"
    yield (
        f"learner: L + W = {step_s:.3g} + {parts.overhead_s.mean:.3g} = {cycle} s per batch of B = "
        f"{scenario.groups} groups x {scenario.group_size} = {size} episodes; busy is at most "
        f"L / (L + W) = {found.busy:.1%}"
    )
    yield f"rate: lambda = B / (L + W) = {size} / {cycle} = {rate:.3g} episodes/s"
    yield (f"episodes in flight: N* = lambda x E[T] = {rate:.3g} x {episode} s = {found.episodes_in_flight}")
    yield (
        f"max_staleness: S_min = E[T_group] / (L + W) + 1/2 = {group} / {cycle} + 0.5, rounded up "
        f"= {found.max_staleness}"
    )
    yield (
        f"synchronous: L / (L + W + E[slowest of {size}]) = {step_s:.3g} / ({cycle} + {light.batch_s:.3g}) "
        f"= {found.sync_busy:.1%}"
    )
    yield (
        f"generators: {scenario.generators} x {parts.slots} slots do at most {found.generator_rate:.3g} "
        f"episodes/s ({light.calls:.3g} calls each), {found.generator_rate / rate:.0%} of lambda"
    )
    in_flight = min(scenario.batches_in_flight * size, scenario.places)
    yield (
        f"credit: {in_flight} episodes in flight bring at most {in_flight} / {episode} s = "
        f"{found.staleness_rate:.3g} episodes/s, {found.staleness_rate / rate:.0%} of lambda"
    )
    if found.environment_rate is not None:
        yield (
            f"environments: {_places(parts)} at once, {light.environment_s:.3g} s per episode: at most "
            f"{found.environment_rate:.3g} episodes/s, {found.environment_rate / rate:.0%} of lambda"
        )
    if found.store_rate is not None:
        yield f"store: {found.store_rate:.3g} results/s, {found.store_rate / rate:.0%} of lambda"


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times of episodes that wait for nobody."""

    episode_s: float
    group_s: float
    batch_s: float
    generator_s: float
    environment_s: float
    calls: float


def _times(parts: Parts, scenario: Scenario, load: int) -> _Times:
    """Draw episodes; deadlines end them as they do in a run."""
    rng = random.Random(scenario.seed)
    names, weights = parts.shares.names, parts.shares.weights
    lived: list[float] = []
    generator_s = environment_s = calls = 0.0
    for _ in range(_DRAWS):
        times = parts.environments[rng.choices(names, weights)[0]]
        turns = times.turns()
        answering = times.reset_s(1)
        calling = 0.0
        for turn in range(turns):
            calling += parts.calls.draw(load)
            answering += min(times.step_s(turn + 1 == turns, 1), scenario.step_timeout_s)
            if answering + calling >= scenario.episode_timeout_s:
                break
        lived.append(min(answering + calling, scenario.episode_timeout_s))
        generator_s += calling / _DRAWS
        environment_s += answering / _DRAWS
        calls += turns / _DRAWS
    return _Times(
        episode_s=sum(lived) / _DRAWS,
        group_s=slowest_mean(lived, scenario.group_size),
        batch_s=slowest_mean(lived, scenario.episodes_per_batch),
        generator_s=generator_s,
        environment_s=environment_s,
        calls=calls,
    )


def slowest_mean(values: list[float], count: int) -> float:
    """Return the mean of the largest of `count` draws, each value as likely as any other.

    It is the sum over the ordered values x_i of x_i * ((i / n) ** count - ((i - 1) / n) ** count).

    Example:
        >>> slowest_mean([0.0, 1.0], 2)
        0.75
    """
    ordered = sorted(values)
    n = len(ordered)
    return sum(
        value * ((index / n) ** count - ((index - 1) / n) ** count)
        for index, value in enumerate(ordered, start=1)
    )


def _environment_rate(parts: Parts) -> float | None:
    """Return the episodes per second, of all environments, that the most limited of them allows."""
    weights = dict(zip(parts.shares.names, parts.shares.weights, strict=True))
    rates = [
        times.at_once / times.mean_episode_s * sum(weights.values()) / weights[name]
        for name, times in parts.environments.items()
        if times.at_once is not None and times.mean_episode_s > 0.0
    ]
    return min(rates, default=None)


def _places(parts: Parts) -> str:
    """Return how many calls each limited environment answers at once, as text."""
    limited = {name: times.at_once for name, times in parts.environments.items() if times.at_once}
    if len(parts.environments) == 1:
        return f"{next(iter(limited.values()))} calls"
    return ", ".join(f"{number} calls of {name}" for name, number in sorted(limited.items()))


def _generator_rate(parts: Parts, scenario: Scenario, calls: float) -> float:
    """Return the episodes per second at the load where generators do most, with calls waiting for slots."""
    best = max(
        (
            load / seconds
            for load in range(1, min(parts.slots, 4096) + 1)
            if (seconds := parts.calls.mean_in_slot(load))
        ),
        default=float("inf"),
    )
    return scenario.generators * best / calls
