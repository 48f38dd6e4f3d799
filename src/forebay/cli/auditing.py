"""The body of `forebay audit`: which environments, one measurement of each, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from forebay.cli.audit_parts import make_origin
from forebay.cli.environment import chosen
from forebay.clock import Clock, SystemClock
from forebay.config import load_config
from forebay.envs.conformance.watch import LoopWatch, Stall
from forebay.envs.foreign import attempt
from forebay.envs.registry import load_environment, load_task_sets
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.planner.audit import Audit, conclude, profile_of
from forebay.planner.probe_actions import PolicyName, choose_actions
from forebay.planner.probing import Prober, measure_overhead_s
from forebay.planner.profile import Profile

_CLOSE_S = 15.0
_LEAVE_S = 1.0
_OVERHEAD_S = 0.25
_BLOCKED_S = 0.1
_MAX_CONCURRENCY = 4096


class Wanted(NamedTuple):
    """What the command line asks for.

    Attributes:
        concurrency: Episodes at a time, level by level.
        seconds_s: Time in which episodes are begun, all environments and levels together.
        policy: Who answers.
        action: What is always answered instead.
        action_length: Characters of a random answer.
        command: How it was asked for, for the profile.
    """

    concurrency: tuple[int, ...]
    seconds_s: float
    policy: PolicyName
    action: str | None
    action_length: int
    command: str


class Auditor:
    """One environment under measurement.

    Args:
        settings: The environment.
        wanted: How it is measured.
        window_s: Time of a level.
        clock: Where artificial delays wait, and what the profile says of the time.

    Raises:
        ConfigError: The environment cannot be made, or has no tasks, or nothing to say to it.
    """

    def __init__(self, settings: EnvironmentSettings, wanted: Wanted, window_s: float, clock: Clock) -> None:
        self.settings = settings
        self.is_left_behind = False
        self._wanted, self._window_s, self._clock = wanted, window_s, clock
        self._began_s = clock.wall_s()
        self._own_call_s = 0.0
        self._kind = load_environment(settings, clock)
        self._actions = choose_actions(
            settings,
            load_task_sets(settings).train,
            policy=wanted.policy,
            action=wanted.action,
            length=wanted.action_length,
        )
        self.prober = Prober(self._kind, self._actions)

    def run(self, say: Callable[[str], None], on_stuck: Callable[[Stall], None]) -> None:
        """Measure; what was measured stays, also if this is interrupted.

        Args:
            say: Hears which level begins.
            on_stuck: Called from another thread if the environment blocks the event loop for good.

        Raises:
            EnvironmentFailure: It cannot be started.
            KeyboardInterrupt: Ctrl-C.
        """
        self._began_s = self._clock.wall_s()
        runner = asyncio.Runner()
        try:
            runner.run(self._measure(say, on_stuck))
        finally:
            # Closing the loop would wait for calls that ignore their cancellation.
            if not self.is_left_behind:
                runner.close()

    def conclude(self, *, interrupted: bool) -> Audit:
        """Return what has been found so far."""
        return conclude(
            self.settings.label,
            self._actions.about,
            self.prober.measured(),
            own_call_s=self._own_call_s,
            interrupted=interrupted,
        )

    def profile(self, audit: Audit) -> Profile | None:
        """Return the environment's part of a profile; None if no episode came to an end."""
        how = self._wanted.command + ("; with artificial delays" if self._is_slowed else "")
        origin = make_origin(self._clock, self._began_s, how)
        found = profile_of(self.prober.measured(), audit.knee, origin, self.settings.weight)
        return None if found is None else Profile(environments={audit.name: found})

    @property
    def _is_slowed(self) -> bool:
        return bool(self.settings.latency.mean_s or self.settings.latency.reset_mean_s)

    async def _measure(self, say: Callable[[str], None], on_stuck: Callable[[Stall], None]) -> None:
        self._own_call_s = await measure_overhead_s(_OVERHEAD_S)
        limit_s = min(self.settings.step_timeout_s, 2.0 * self._window_s) + _BLOCKED_S
        watch = LoopWatch(
            asyncio.get_running_loop(), blocked_s=_BLOCKED_S, limit_s=limit_s, on_stuck=on_stuck
        )
        self.prober.watch = watch
        try:
            await self._kind.open()
            for concurrency in self._wanted.concurrency:
                if self.prober.is_hopeless:
                    break
                say(f"{self.settings.label}: {concurrency} at a time, {self._window_s:.3g} s")
                await self.prober.run_level(concurrency, self._window_s, self._window_s)
        finally:
            watch.stop()
            await attempt(self._kind.close, timeout_s=_CLOSE_S, name="close")
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                _, left = await asyncio.wait(others, timeout=_LEAVE_S)
                self.is_left_behind = bool(left)


def audited(target: str, environment: str | None, wanted: Wanted) -> list[Auditor]:
    """Prepare the environments that are meant.

    Args:
        target: A configuration, an entrypoint or a built-in name.
        environment: One of a configuration; None for all.
        wanted: How they are measured.

    Raises:
        ConfigError: There is none, or one cannot be measured.
    """
    settings = _settings_of(target, environment)
    window_s = wanted.seconds_s / len(wanted.concurrency) / len(settings)
    return [Auditor(each, wanted, window_s, SystemClock()) for each in settings]


def parse_concurrency(text: str, option: str = "--concurrency") -> tuple[int, ...]:
    """Read numbers of episodes or requests at a time, such as `1,4,16`.

    Args:
        text: The numbers.
        option: What gave them, for the message.

    Raises:
        ConfigError: They are not ascending whole numbers.

    Example:
        >>> parse_concurrency("1, 4,16")
        (1, 4, 16)
    """
    parts = [part.strip() for part in text.split(",")]
    levels = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 9)
    if len(levels) < len(parts) or list(levels) != sorted(set(levels)) or levels[0] < 1:
        raise ConfigError(
            f"{option} needs ascending whole numbers", got=repr(text[:80]), limit="such as 1,4,16,64"
        )
    if levels[-1] > _MAX_CONCURRENCY:
        raise ConfigError(f"{option} is too high", got=levels[-1], limit=_MAX_CONCURRENCY)
    return levels


def failure_of(audit: Audit) -> EnvironmentFailure | None:
    """Return what to end with if no call of an environment was ever answered, or no episode ended well."""
    ended = sum(level.num_episodes for level in audit.levels)
    failed = sum(level.num_errors + level.num_timeouts for level in audit.levels)
    if audit.interrupted or ended > failed:
        return None
    if audit.details:
        error, detail = next(reversed(audit.details.items()))
        return EnvironmentFailure(
            f"environment {audit.name}: all {ended} episodes failed; {error.partition(':')[0]}: {detail}",
            remedy=f"forebay env check says what is wrong with {audit.name}.",
        )
    cut = sum(level.num_cut for level in audit.levels)
    return EnvironmentFailure(
        f"environment {audit.name}: no episode ended in time",
        got=f"{cut} given up",
        remedy="Raise --seconds, lower environment.NAME.step_timeout_s to see which call hangs, or play one "
        "by hand: forebay play.",
    )


def _settings_of(target: str, environment: str | None) -> list[EnvironmentSettings]:
    path = Path(target)
    if target.endswith(".toml") or path.is_file():
        config = load_config(path)
        if environment is not None:
            return [chosen(config, environment, path)]
        return list(config.environment.values())
    if environment is not None:
        raise ConfigError("--environment names a section of a TOML file", got=target)
    try:
        return [EnvironmentSettings(entrypoint=target)]
    except ValueError:
        raise ConfigError(
            f"{target!r} is no environment",
            remedy="Write a TOML file, module:Class, or a built-in name.",
        ) from None
