"""The settings that are predicted and then run, and others on which the simulator may be worked on."""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.staleness import OnStale


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long an environment takes; see `environment.Waiting`."""

    mean_s: float
    sigma: float = 0.5
    stragglers: float = 0.0
    least_turns: int = 4
    most_turns: int = 4
    at_once: int = 0
    waits_at_end: bool = False

    @property
    def name(self) -> str:
        """What its measurement is called."""
        parts = [f"{self.mean_s:g}s", f"sigma{self.sigma:g}", f"turns{self.least_turns}-{self.most_turns}"]
        parts += [f"stragglers{self.stragglers:g}"] if self.stragglers else []
        parts += [f"at-once{self.at_once}"] if self.at_once else []
        parts += ["waits-at-end"] if self.waits_at_end else []
        return "-".join(parts)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        name: What it is called.
        about: What it is there for.
        waits: The environment.
        groups: Groups of a batch.
        group_size: Trajectories of a group.
        max_staleness: The limit; 0 is synchronous.
        credit: Batches in flight; None for the default.
        on_stale: The rule.
        places: Episodes in flight.
        slots: Of the generator.
        episode_timeout_s: Deadline of an episode.
        seconds_s: Training time, from the first batch on; longer where chance weighs more.
        num_layers: Blocks of the model: they make a step as long as waits are worth predicting beside.
    """

    name: str
    about: str
    waits: Waits
    groups: int = 4
    group_size: int = 4
    max_staleness: int = 4
    credit: int | None = None
    on_stale: OnStale = "wait"
    places: int = 512
    slots: int = 64
    episode_timeout_s: float = 30.0
    seconds_s: float = 42.0
    num_layers: int = 6

    @property
    def overrides(self) -> list[str]:
        """The same as settings of a run."""
        waits = msgspec.to_builtins(self.waits)
        values = {
            **{f"environment.waits.kwargs.{name}": _toml(value) for name, value in waits.items()},
            "environment.waits.kwargs.seed": 2,
            "environment.waits.episode_timeout_s": self.episode_timeout_s,
            "environment.waits.step_timeout_s": self.episode_timeout_s,
            "batching.groups": self.groups,
            "batching.group_size": self.group_size,
            "staleness.max_staleness": self.max_staleness,
            "staleness.on_stale": f'"{self.on_stale}"',
            "actors.episodes_per_process": self.places,
            "generator.slots": self.slots,
            "model.num_layers": self.num_layers,
        }
        if self.credit is not None:
            values["staleness.credit"] = self.credit
        return [f"{name}={value}" for name, value in values.items()]

    @property
    def scenario(self) -> dict[str, object]:
        """The same as settings of a simulation."""
        return {
            "groups": self.groups,
            "group_size": self.group_size,
            "max_staleness": self.max_staleness,
            "credit": self.credit,
            "on_stale": self.on_stale,
            "episodes_in_flight": self.places,
            "slots": self.slots,
            "episode_timeout_s": self.episode_timeout_s,
            "step_timeout_s": self.episode_timeout_s,
        }


def _toml(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


_LIGHT: Final = Waits(mean_s=0.2)
_HEAVY: Final = Waits(mean_s=0.2, stragglers=0.05)
_HEAVIER: Final = Waits(mean_s=0.15, stragglers=0.1)
_SHORT: Final = Waits(mean_s=0.15, least_turns=2, most_turns=2)
_WIDE: Final = Waits(mean_s=0.25, sigma=1.2, least_turns=2, most_turns=6)
_VARIED: Final = Waits(mean_s=0.25, sigma=0.8, least_turns=2, most_turns=6)
_LIMITED: Final = Waits(mean_s=0.2, at_once=14)
_TIGHT: Final = Waits(mean_s=0.2, sigma=1.0, at_once=10)

# Nothing about the simulator was chosen by these.
SETTINGS: Final = (
    Setting(
        name="sync-light-1", about="synchronous, light tail, single episodes", waits=_LIGHT,
        groups=16, group_size=1, max_staleness=0,
    ),
    Setting(
        name="sync-short-8", about="synchronous, two turns, groups of 8", waits=_SHORT,
        groups=2, group_size=8, max_staleness=0,
    ),
    Setting(
        name="sync-heavy-4", about="synchronous, 10 % stragglers", waits=_HEAVIER, max_staleness=0,
        seconds_s=58.0,
    ),
    Setting(name="wait-light-4", about="decoupled, light tail", waits=_LIGHT, max_staleness=2),
    Setting(name="wait-heavy-4", about="decoupled, 5 % stragglers", waits=_HEAVY, max_staleness=5,
        seconds_s=58.0,
    ),
    Setting(
        name="wait-heavy-8", about="decoupled, 5 % stragglers, groups of 8", waits=_HEAVY,
        groups=2, group_size=8, max_staleness=8, seconds_s=58.0,
    ),
    Setting(
        name="wait-varied-1", about="decoupled, sigma 0.8, 2 to 6 turns, single episodes", waits=_VARIED,
        groups=16, group_size=1, max_staleness=4, seconds_s=58.0,
    ),
    Setting(name="drop-heavy-4", about="too old is dropped", waits=_HEAVY, max_staleness=4, on_stale="drop"),
    Setting(
        name="drop-wide-1", about="too old is dropped, single episodes", waits=_WIDE,
        groups=16, group_size=1, max_staleness=3, on_stale="drop",
    ),
    Setting(name="mask-heavy-4", about="too old is masked", waits=_HEAVY, max_staleness=3, on_stale="mask"),
    Setting(
        name="mask-wide-8", about="too old is masked, groups of 8", waits=_WIDE,
        groups=2, group_size=8, max_staleness=4, on_stale="mask",
    ),
    Setting(
        name="limited-4", about="an environment that answers 14 at a time", waits=_LIMITED, max_staleness=8,
    ),
    Setting(
        name="limited-1", about="an environment that answers 10 at a time, single episodes", waits=_TIGHT,
        groups=16, group_size=1, max_staleness=6, credit=4,
    ),
    Setting(
        name="places-4", about="18 places for episodes", waits=_LIGHT, max_staleness=8, places=18,
    ),
    Setting(
        name="slots-4", about="10 slots in the generator", waits=_LIGHT, max_staleness=8, slots=10,
    ),
    Setting(
        name="deadline-4", about="episodes end after 2 s", waits=_HEAVY, max_staleness=4,
        episode_timeout_s=2.0,
    ),
)  # fmt: skip

# On these the simulator may be compared with runs while it is worked on.
WORKBENCH: Final = (
    Setting(
        name="bench-sync", about="synchronous", waits=Waits(mean_s=0.6), groups=8, group_size=2,
        max_staleness=0,
    ),
    Setting(
        name="bench-wait", about="decoupled", waits=Waits(mean_s=0.6, stragglers=0.03), groups=8,
        group_size=2, max_staleness=3,
    ),
    Setting(
        name="bench-mask", about="masked", waits=Waits(mean_s=0.6, sigma=1.0), groups=8,
        group_size=2, max_staleness=2, on_stale="mask",
    ),
    Setting(
        name="bench-limited", about="rate-limited", waits=Waits(mean_s=0.2, at_once=6), groups=8,
        group_size=2, max_staleness=6,
    ),
    Setting(
        name="bench-slots", about="few slots in the generator", waits=Waits(mean_s=0.6), groups=8,
        group_size=2, max_staleness=5, slots=6,
    ),
)  # fmt: skip
