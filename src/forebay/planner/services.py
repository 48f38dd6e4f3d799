"""What simulated episodes wait for in an environment, how often it is called, and what it says."""

from __future__ import annotations

import random
from typing import NamedTuple

from forebay.planner.distribution import Distribution, constant
from forebay.planner.events import Draws
from forebay.planner.model_calls import interpolate
from forebay.planner.profile import EnvironmentProfile, Traffic
from forebay.planner.scenario import Scenario


class EnvironmentTimes:
    """How long an environment takes, and how often it is called.

    Args:
        environment: As measured.
        scenario: What differs from that.
        tokens_per_turn: Tokens of a turn where none were measured.
        rng: Source of randomness.
        traffic: What the model's own episodes are like; None leaves it to the environment's audit, in which
            somebody else may have answered.

    Attributes:
        at_once: Resets and steps that it answers at a time; None for no limit.
        tells_lengths: Whether it is known how long its episodes are, in tokens.
    """

    def __init__(
        self,
        environment: EnvironmentProfile,
        scenario: Scenario,
        tokens_per_turn: float,
        rng: random.Random,
        traffic: Traffic | None = None,
    ) -> None:
        given = scenario.environment_concurrency
        places = places_of(environment) if given is None else Places(given)
        self.at_once = places.at_once
        factor = scenario.environment_factor * places.pace
        self._rng = rng
        self._reset = Draws(environment.reset_s, rng, factor)
        self._step = Draws(environment.step_s, rng, factor)
        self._final = Draws(environment.final_step_s or environment.step_s, rng, factor)
        self._turns = Draws(environment.turns if traffic is None else traffic.turns, rng)
        self._fixed_turns = scenario.turns
        tokens = environment.tokens_per_turn if traffic is None else traffic.sampled_tokens
        self._tokens = None if tokens is None else Draws(tokens, rng)
        self._default_tokens = tokens_per_turn
        self.tells_lengths = traffic is not None
        first, later = (constant(0.0), constant(0.0)) if traffic is None else prompts_of(traffic)
        self._first_prompt, self._observed = Draws(first, rng), Draws(later, rng)
        self._straggles, self._straggler_factor = scenario.straggler_probability, scenario.straggler_factor
        self._fails = max(scenario.failure_probability, _step_failures(environment))
        self._crowding = _crowding(environment)

    @property
    def mean_turns(self) -> float:
        """Mean model calls of an episode."""
        return float(self._fixed_turns or self._turns.mean)

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a turn."""
        return self._default_tokens if self._tokens is None else self._tokens.mean

    @property
    def mean_step_s(self) -> float:
        """Mean time of a step that does not end the episode, stragglers included."""
        return self._step.mean * (1.0 + self._straggles * (self._straggler_factor - 1.0))

    @property
    def mean_episode_s(self) -> float:
        """Mean time that an episode spends in the environment when nobody waits and no limit ends it."""
        return self._reset.mean + self.mean_step_s * (self.mean_turns - 1.0) + self._final.mean

    def reset_s(self, live: int) -> float:
        """Return the time to pose a task among so many episodes."""
        return self._reset.draw() * self._crowded(live)

    def step_s(self, final: bool, live: int) -> float:
        """Return the time of a step among so many episodes."""
        if final:
            return self._final.draw() * self._crowded(live)
        step_s = self._step.draw() * self._crowded(live)
        if self._straggles and self._rng.random() < self._straggles:
            step_s *= self._straggler_factor
        return step_s

    def answer_s(self, done: int, num_turns: int, live: int) -> float:
        """Return the time of the reset, if `done` is -1, or else of the step after so many turns."""
        return self.reset_s(live) if done < 0 else self.step_s(done + 1 >= num_turns, live)

    def fails(self) -> bool:
        """Return whether a step fails."""
        return bool(self._fails) and self._rng.random() < self._fails

    def turns(self) -> int:
        """Return the model calls of an episode."""
        return self._fixed_turns or max(1, round(self._turns.draw()))

    def tokens(self) -> float:
        """Return the tokens of a turn."""
        return self._default_tokens if self._tokens is None else self._tokens.draw()

    def prompt_tokens(self, call: int) -> float:
        """Return the tokens that come before what a call samples: all of the first prompt, then what is new.

        Args:
            call: From 0; 0 tokens if nothing is known of them.
        """
        return self._observed.draw() if call else self._first_prompt.draw()

    def length(self) -> int:
        """Return the tokens of an episode, prompts included."""
        return round(sum(self.prompt_tokens(call) + self.tokens() for call in range(self.turns())))

    def _crowded(self, live: int) -> float:
        return interpolate(float(live), self._crowding) if self._crowding else 1.0


def prompts_of(traffic: Traffic) -> tuple[Distribution, Distribution]:
    """Return the tokens of a first prompt, and those that come between two calls.

    Where they were not told apart, the shortest prompt of all calls is taken for the first one, and the rest
    of the tokens that were not sampled lies between the calls: episodes are as long as they were, on the
    average.

    Args:
        traffic: What episodes ask.
    """
    if traffic.first_prompt_tokens is not None:
        # Where nothing was observed, no episode had a second call.
        return traffic.first_prompt_tokens, traffic.observed_tokens or constant(0.0)
    unsampled = max(0.0, traffic.episode_tokens.mean - traffic.action_tokens.mean)
    later_calls = traffic.turns.mean - 1.0
    first = min(unsampled, traffic.prompt_tokens.values[0]) if later_calls > 0.0 else unsampled
    return constant(first), constant((unsampled - first) / later_calls if later_calls > 0.0 else 0.0)


def _step_failures(environment: EnvironmentProfile) -> float:
    """Return the share of steps that fail, if so many episodes do."""
    survives = 1.0 - environment.error_rate
    return float(1.0 - survives ** (1.0 / environment.turns.mean))


class Places(NamedTuple):
    """What a limited environment gives at most.

    Attributes:
        at_once: Answers at a time; None for no limit.
        pace: How many times longer an answer takes than was measured below the knee, so that so many places
            give the throughput that was measured at it.
    """

    at_once: int | None
    pace: float = 1.0


def places_of(environment: EnvironmentProfile) -> Places:
    """Return how many answers an environment gives at a time.

    Below the knee every episode is answered at once: c episodes get R(c) answers a second. The most that it
    gives, R_max, is what c * R_max / R(c) episodes would get unhindered (Little's law). Beyond that others
    wait, and its times are those from below the knee.

    Args:
        environment: As measured.

    Returns:
        That number, rounded; the pace makes up for the rounding.
    """
    free = [level for level in environment.levels if level.concurrency <= environment.concurrency]
    if environment.knee is None or not free or free[-1].steps_per_s <= 0.0:
        return Places(None)
    most = max(level.steps_per_s for level in environment.levels)
    exact = free[-1].concurrency * most / free[-1].steps_per_s
    at_once = max(1, round(exact))
    return Places(at_once, at_once / exact)


def _crowding(environment: EnvironmentProfile) -> list[tuple[float, float]]:
    """Return how many times longer a step takes, by episodes alive; empty if nothing slows it gradually.

    The measure is the highest concurrency at which episodes did not disturb one another; an environment with
    a knee has places instead.
    """
    free = [level for level in environment.levels if level.concurrency <= environment.concurrency]
    slowed = [level for level in environment.levels if level.concurrency > environment.concurrency]
    if environment.knee is not None or not free or not slowed or free[-1].step_s.mean <= 0.0:
        return []
    base = free[-1]
    return [(float(level.concurrency), level.step_s.mean / base.step_s.mean) for level in (base, *slowed)]
