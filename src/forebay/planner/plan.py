"""The smallest fleet that keeps a learner as busy as is wanted, found by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from forebay.errors import ConfigError
from forebay.planner.bounds import Bounds, bounds_of
from forebay.planner.profile import Profile
from forebay.planner.scenario import Scenario
from forebay.planner.simulation import Outcome, simulate
from forebay.staleness import OnStale

_EPISODES_PER_PROCESS: Final = 512
_FLEET_FACTORS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_STALENESS_FACTORS: Final = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
# With so little to gain, a synchronous run is simpler and as fast.
_LITTLE_GAIN: Final = 1.05


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices per hour, in any currency; 0 is not counted.

    Args:
        learner: The learner's machine.
        generator: One generator.
        actor_process: One actor process.
    """

    learner: float = 0.0
    generator: float = 0.0
    actor_process: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ConfigError(f"the price of {name.replace('_', ' ')} must be at least 0", got=value)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan must reach, and may use.

    Args:
        busy: The least busy fraction.
        max_staleness: The most staleness allowed; None for as much as it takes.
        on_stale: The rule for what is too old.
        prices: For the cost.
    """

    busy: float = 0.97
    max_staleness: int | None = None
    on_stale: OnStale = "wait"
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        if not 0.0 < self.busy <= 1.0:
            raise ConfigError("busy is a fraction", got=self.busy, limit="more than 0, at most 1")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated setting of the picture."""

    max_staleness: int
    episodes_in_flight: int
    busy: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and what it is predicted to do.

    Args:
        episodes_in_flight: Places for episodes.
        actor_processes: Processes that share them.
        generators: Generators like the one that was measured.
        max_staleness: The limit, versions.
        credit: Batches in flight.
        on_stale: The rule for what is too old.
        groups: Groups per batch.
        group_size: Trajectories of a group.
        capacity_groups: Groups that the store must hold.
        episode_timeout_s: The episodes' deadline.
        busy: Predicted; so are the next ones.
        goodput: Fresh tokens per second over those of the bare step.
        steps_per_s: Updates per second.
        staleness_mean: Over trained tokens, versions.
        discarded: Share of the trajectories that come and are not trained.
        masked_share: Share of the tokens in batches that are not trained.
        buffer_bytes: Most bytes of trajectories that wait.
        sync_busy: Busy of the same work done synchronously.
        reached: Whether the wanted busy is reached.
        decoupling_helps: Whether it beats the synchronous run by more than a twentieth.
        cost_per_hour: None without prices.
        cost_per_1000_steps: None without prices.
        reason: Why this fleet, in a sentence or two.
        arithmetic: The bounds, a line each.
        cells: Busy by staleness and fleet.
    """

    episodes_in_flight: int
    actor_processes: int
    generators: int
    max_staleness: int
    credit: int
    on_stale: OnStale
    groups: int
    group_size: int
    capacity_groups: int
    episode_timeout_s: float
    busy: float
    goodput: float
    steps_per_s: float
    staleness_mean: float
    discarded: float
    masked_share: float
    buffer_bytes: float
    sync_busy: float
    reached: bool
    decoupling_helps: bool
    cost_per_hour: float | None
    cost_per_1000_steps: float | None
    reason: str
    arithmetic: tuple[str, ...]
    cells: tuple[Cell, ...]


def make_scenario(values: Mapping[str, Any]) -> Scenario:
    """Return a scenario of settings by name.

    Raises:
        ConfigError: A name is unknown, or a value cannot work.
    """
    unknown = sorted(set(values) - set(Scenario.model_fields))
    if unknown:
        raise ConfigError(
            f"no such setting: {unknown[0]}", remedy=f"One of {', '.join(sorted(Scenario.model_fields))}."
        )
    try:
        return Scenario(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        message = str(fault["msg"]).removeprefix("Value error, ").splitlines()
        if not where:
            raise ConfigError(message[-1]) from None
        raise ConfigError(f"{where}: {message[0]}, got {fault['input']!r:.80}") from None


def plan(
    profile: Profile, base: Scenario, wanted: Wanted, say: Callable[[str], None] = lambda _: None
) -> Plan:
    """Search for the smallest fleet.

    First as many generators as the rate needs; then, with places for all that the credit allows, the least
    max_staleness; then the least credit, for fresher data; then the fewest places.

    Args:
        profile: What was measured.
        base: Batch, group, deadlines: what is not searched.
        wanted: The aim.
        say: Told what is being tried.

    Raises:
        ConfigError: A part is missing, or no batch can ever be made.
    """
    search = _Search(profile, base.model_copy(update={"on_stale": wanted.on_stale}), wanted, say)
    return search.run()


class _Search:
    """One search, with what it has simulated."""

    def __init__(self, profile: Profile, base: Scenario, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._profile, self._wanted, self._say = profile, wanted, say
        self._known: dict[tuple[int, int, int], Outcome] = {}
        rough = bounds_of(profile, base)
        # The generators must do what the learner eats, with a tenth to spare.
        needed = math.ceil(1.1 * rough.rate / (rough.generator_rate / base.generators))
        self._base = base.model_copy(update={"generators": max(base.generators, needed)})
        self._bounds = bounds_of(profile, self._base)

    def run(self) -> Plan:
        sync = self._simulate(0, 1, self._base.episodes_per_batch)
        limit = self._wanted.max_staleness
        staleness = self._least_staleness(limit)
        whole = self._whole(staleness)
        outcome = self._simulate(staleness, self._most_credit(staleness), whole)
        reached = outcome.busy >= self._wanted.busy
        aim = self._wanted.busy if reached else outcome.busy - 0.005
        credit = self._least(
            self._first_credit(staleness),
            self._most_credit(staleness),
            lambda n: self._simulate(staleness, n, n * self._base.episodes_per_batch).busy >= aim,
        )
        places = self._fewest_places(staleness, credit, aim)
        found = self._simulate(staleness, credit, places)
        return self._plan(staleness, credit, places, found, sync, reached)

    def _least_staleness(self, limit: int | None) -> int:
        if limit is not None:
            top = limit
        else:
            top = max(2, 4 * self._bounds.max_staleness)
        return self._least(
            self._base.updates_per_batch - 1,
            max(top, self._base.updates_per_batch - 1),
            lambda s: self._simulate(s, self._most_credit(s), self._whole(s)).busy >= self._wanted.busy,
        )

    def _most_credit(self, staleness: int) -> int:
        return max(1, (staleness + 1) // self._base.updates_per_batch)

    def _first_credit(self, staleness: int) -> int:
        return min(self._base.publish_every, self._most_credit(staleness))

    def _whole(self, staleness: int) -> int:
        return self._most_credit(staleness) * self._base.episodes_per_batch

    def _fewest_places(self, staleness: int, credit: int, aim: float) -> int:
        whole = credit * self._base.episodes_per_batch
        unit = max(1, whole // 32)
        units = self._least(
            1, 32, lambda n: self._simulate(staleness, credit, min(whole, n * unit)).busy >= aim
        )
        return min(whole, units * unit)

    def _least(self, low: int, high: int, suffices: Callable[[int], bool]) -> int:
        """Return the least number that suffices, by halving; the highest if none does."""
        while low < high:
            middle = (low + high) // 2
            if suffices(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _simulate(self, staleness: int, credit: int, places: int) -> Outcome:
        key = (staleness, credit, places)
        if key not in self._known:
            self._say(f"max_staleness {staleness}, credit {credit}, {places} episodes in flight")
            update = {
                "max_staleness": staleness,
                "credit": credit,
                "episodes_in_flight": places,
                "steps": max(self._base.steps, 4 * credit + 20),
            }
            scenario = make_scenario({**self._base.model_dump(), **update})
            self._known[key] = simulate(self._profile, scenario)
        return self._known[key]

    def _cells(self, staleness: int, places: int) -> tuple[Cell, ...]:
        rows = sorted({max(0, round(staleness * factor)) for factor in _STALENESS_FACTORS[:4]})
        cells = []
        for row in rows:
            if row < self._base.updates_per_batch - 1:
                continue
            for factor in _FLEET_FACTORS[::2]:
                fleet = max(1, round(places * factor))
                busy = self._simulate(row, self._most_credit(row), fleet).busy
                cells.append(Cell(max_staleness=row, episodes_in_flight=fleet, busy=busy))
        return tuple(cells)

    def _plan(
        self, staleness: int, credit: int, places: int, found: Outcome, sync: Outcome, reached: bool
    ) -> Plan:
        base, prices = self._base, self._wanted.prices
        processes = math.ceil(places / _EPISODES_PER_PROCESS)
        helps = found.busy > _LITTLE_GAIN * sync.busy
        cost = (
            prices.learner + base.generators * prices.generator + processes * prices.actor_process
        ) or None
        return Plan(
            episodes_in_flight=places,
            actor_processes=processes,
            generators=base.generators,
            max_staleness=staleness,
            credit=credit,
            on_stale=base.on_stale,
            groups=base.groups,
            group_size=base.group_size,
            capacity_groups=(credit + 1) * base.groups,
            episode_timeout_s=base.episode_timeout_s,
            busy=found.busy,
            goodput=found.goodput,
            steps_per_s=found.steps_per_s,
            staleness_mean=found.staleness_mean,
            discarded=found.discarded_share,
            masked_share=found.masked_share,
            buffer_bytes=found.buffer_bytes_max,
            sync_busy=sync.busy,
            reached=reached,
            decoupling_helps=helps,
            cost_per_hour=cost,
            cost_per_1000_steps=cost / 3.6 / found.steps_per_s if cost else None,
            reason=explain(self._bounds, self._wanted, found, sync, staleness, reached=reached, helps=helps),
            arithmetic=self._bounds.lines,
            cells=self._cells(staleness, places),
        )


def explain(
    bounds: Bounds,
    wanted: Wanted,
    found: Outcome,
    sync: Outcome,
    staleness: int,
    *,
    reached: bool,
    helps: bool,
) -> str:
    """Return why a plan is as it is, with the arithmetic.

    Args:
        bounds: Of the same run.
        wanted: The aim.
        found: What the plan comes to.
        sync: What the synchronous run comes to.
        staleness: Its max_staleness.
        reached: Whether the aim is reached.
        helps: Whether decoupling does.
    """
    parts: list[str] = []
    if not helps:
        parts.append(
            f"Decoupling does not help: the synchronous run is busy {sync.busy:.1%}, this one "
            f"{found.busy:.1%}. " + _why_not(bounds)
        )
    if reached:
        parts.append(
            f"max_staleness {staleness} is the least that keeps the learner busy "
            f"{wanted.busy:.0%} of the time: "
            f"a group takes {found.group_s:.3g} s, {found.group_s / bounds.cycle_s:.2g} batches of "
            f"{bounds.cycle_s:.3g} s."
        )
        return " ".join(parts)
    parts.append(f"Busy {wanted.busy:.0%} is out of reach; {found.busy:.1%} is the most found.")
    return " ".join([*parts, _what_limits(bounds, wanted.busy, found, staleness)])


def _what_limits(bounds: Bounds, busy: float, found: Outcome, staleness: int) -> str:
    """Return what keeps a busy fraction out of reach."""
    if bounds.busy < busy:
        return f"The overhead between two steps alone limits it: L / (L + W) = {bounds.busy:.1%}."
    for rate, what in ((bounds.environment_rate, "environments allow"), (bounds.store_rate, "store allows")):
        if rate is not None and rate < busy * bounds.rate:
            return f"The {what} {rate:.3g} episodes/s, and the learner eats {bounds.rate:.3g}."
    return (
        f"max_staleness {staleness} limits it: a group takes {found.group_s:.3g} s on average, its slowest "
        f"ones longer, and must be trained within {staleness} batches of {bounds.cycle_s:.3g} s = "
        f"{staleness * bounds.cycle_s:.3g} s. S_min = {bounds.max_staleness} before stragglers: raise "
        f"max_staleness, make groups smaller, or shorten the episodes' deadline."
    )


def _why_not(bounds: Bounds) -> str:
    if bounds.group_s < 0.1 * bounds.cycle_s:
        return f"A group takes {bounds.group_s:.3g} s, the learner {bounds.cycle_s:.3g} s a batch."
    if bounds.generator_share > 0.5:
        return (
            f"{bounds.generator_share:.0%} of an episode is generation: generators on hardware of their own "
            f"help, staleness does not."
        )
    return "What limits it is not waiting for environments."
