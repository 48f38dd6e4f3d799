"""No silent wait: every party says what it does, and whoever stops is named."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.clock import Clock
from forebay.errors import ConfigError, NoProgressError


@dataclass(slots=True)
class _Party:
    owner: str
    progress: bool
    silent_after_s: float
    last_s: float
    doing: str = "has not begun"
    num_beats: int = 0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong first: when (monotonic seconds), where, and the traceback or reason."""

    time_s: float
    name: str
    cause: str


class Watchdog:
    """Ends a run in which nothing moves, and says why.

    Parties beat. A beat of a party of progress (a trained step) moves the deadline of the whole run; the
    others' silence is reported. Call `check` at least every few seconds, from whatever loop waits.

    Args:
        clock: Source of time.
        limit_s: Longest time without progress.

    Raises:
        ConfigError: The limit is not positive.

    Example:
        >>> from forebay.clock import ManualClock
        >>> clock = ManualClock()
        >>> watchdog = Watchdog(clock, limit_s=30.0)
        >>> watchdog.register("learner", owner="learner", progress=True)
        >>> watchdog.beat("learner", "waits for groups")
        >>> clock.advance(31.0)
        >>> watchdog.check()
        Traceback (most recent call last):
        forebay.errors.NoProgressError: nothing moved (got 31.0 s, limit 30.0 s). learner waits for
        groups (31.0 s ago)
    """

    def __init__(self, clock: Clock, *, limit_s: float) -> None:
        if not limit_s > 0:
            raise ConfigError("no_progress_s must be positive", got=limit_s)
        self._clock = clock
        self._limit_s = limit_s
        self._progress_s = clock.monotonic_s()
        self._parties: dict[str, _Party] = {}
        self._failures: list[Failure] = []

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures so far, the first one first."""
        return tuple(self._failures)

    def register(self, name: str, *, owner: str, progress: bool = False, silent_after_s: float = 4.0) -> None:
        """Expect beats from a party.

        Args:
            name: The party, such as `actor-3`.
            owner: Who has to mend it when it stops.
            progress: Whether its beats are what the run is for.
            silent_after_s: Silence after which it is reported; for parties of progress the limit of the
                run counts.
        """
        self._parties[name] = _Party(owner, progress, silent_after_s, self._clock.monotonic_s())

    def forget(self, name: str) -> None:
        """Expect nothing more from a party: it has ended in order."""
        self._parties.pop(name, None)

    def beat(self, name: str, doing: str, *, moved: bool = True) -> None:
        """Note that a party is alive.

        Args:
            name: A registered party.
            doing: What it does or waits for, as the end of a sentence about it.
            moved: False if a party of progress merely waits: it is alive, but the deadline stays.
        """
        party = self._parties[name]
        party.last_s = self._clock.monotonic_s()
        party.doing = doing
        party.num_beats += 1
        party.silent = False
        if party.progress and moved:
            self._progress_s = party.last_s

    def fail(self, name: str, cause: str) -> None:
        """Note a failure; the first one is named when the run ends.

        Args:
            name: Where it happened.
            cause: The reason or the traceback.
        """
        self._failures.append(Failure(self._clock.monotonic_s(), name, cause))

    def check(self) -> tuple[str, ...]:
        """Return a sentence for each party that has fallen silent since the last check.

        Raises:
            NoProgressError: Nothing moved for longer than the limit; names the first failure, if there
                was one, and what each party did last, the one silent for longest first.
        """
        now_s = self._clock.monotonic_s()
        idle_s = now_s - self._progress_s
        if idle_s > self._limit_s:
            raise NoProgressError(
                "nothing moved",
                got=f"{idle_s:.1f} s",
                limit=f"{self._limit_s:.1f} s",
                remedy=self._first_cause(now_s),
            )
        return tuple(self._newly_silent(now_s))

    def _newly_silent(self, now_s: float) -> list[str]:
        sentences = []
        for name, party in self._parties.items():
            silence_s = now_s - party.last_s
            if not party.silent and not party.progress and silence_s > party.silent_after_s:
                party.silent = True
                sentences.append(
                    f"{name} has been silent for {silence_s:.1f} s; it {party.doing} (owner: {party.owner})"
                )
        return sentences

    def _first_cause(self, now_s: float) -> str:
        parties = sorted(self._parties.items(), key=lambda item: item[1].last_s)
        state = "; ".join(
            f"{name} {party.doing} ({now_s - party.last_s:.1f} s ago)" for name, party in parties
        )
        if not self._failures:
            return state
        first = self._failures[0]
        return f"First failure, {now_s - first.time_s:.1f} s ago in {first.name}: {first.cause}\n{state}"
