"""What an audit of an environment has measured: calls, episodes, levels of concurrency."""

from __future__ import annotations

from typing import Literal

import msgspec

Verb = Literal["reset", "step"]
Ending = Literal["terminated", "truncated", "turns", "error", "timeout", "cut"]
FAILED: frozenset[Ending] = frozenset(("error", "timeout"))
COMPLETE: frozenset[Ending] = frozenset(("terminated", "truncated", "turns"))


class Call(msgspec.Struct, frozen=True):
    """One call of an environment.

    Args:
        verb: The method.
        began_s: When it was called, in seconds since its level began.
        ended_s: When it returned, raised, or was given up.
        answered: It returned what the contract asks for.
        final: It ended the episode.
    """

    verb: Verb
    began_s: float
    ended_s: float
    answered: bool
    final: bool = False

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as it went.

    Args:
        began_s: When it began, in seconds since its level began.
        ended_s: When its last call ended.
        calls: Its calls, in order.
        own_s: Time in it that was not the environment's: between an answer and the next call.
        observed_characters: Characters of all that the environment said.
        ending: `terminated` and `truncated` are the environment's, `turns` the turn limit; `error` and
            `timeout` are failures; `cut` was given up because the level was over.
        error: Kind of failure, as "step: ValueError"; empty if there is none.
        detail: What was raised.
    """

    began_s: float
    ended_s: float
    calls: tuple[Call, ...]
    own_s: float
    observed_characters: int = 0
    ending: Ending
    error: str = ""
    detail: str = ""

    @property
    def num_turns(self) -> int:
        """Steps that were answered."""
        return sum(call.verb == "step" and call.answered for call in self.calls)

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of episodes at a time gave.

    Args:
        concurrency: Episodes at a time.
        window_s: Time in which episodes were begun; what they still needed was waited for, within limits.
        episodes: All of them.
        cpu_busy: Share of the machine's processors that were busy; None where that is not known.
        own_cpu: Processor seconds of this process per second: its event loop runs on one core.
        blocked_s: Time in which the environment blocked the event loop.
        blocked_at: The line that blocked it longest.
    """

    concurrency: int
    window_s: float
    episodes: tuple[Episode, ...]
    cpu_busy: float | None = None
    own_cpu: float = 0.0
    blocked_s: float = 0.0
    blocked_at: str = ""

    def durations_s(self, verb: Verb) -> list[float]:
        """Return how long the answered calls of a kind took that began within the window."""
        calls = (call for episode in self.episodes for call in episode.calls)
        return [c.duration_s for c in calls if c.verb == verb and c.answered and c.began_s <= self.window_s]

    @property
    def complete(self) -> list[Episode]:
        """Episodes that came to an end without a failure."""
        return [episode for episode in self.episodes if episode.ending in COMPLETE]

    @property
    def useful_calls(self) -> list[Call]:
        """Answered calls of episodes that did not fail."""
        kept = (episode for episode in self.episodes if episode.ending not in FAILED)
        return [call for episode in kept for call in episode.calls if call.answered]
