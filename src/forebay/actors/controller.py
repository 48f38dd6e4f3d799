"""How many episodes of an environment run at once: more while the learner starves, fewer in vain.

Pure: observations go in, decisions come out; time is a number in them. One controller decides for the
episodes of one environment in all processes, so that one that is slow takes no places from another.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.actors.levels import Knee, Levels
from forebay.actors.observing import Bound, Decision, Demand, Epoch, Observation
from forebay.actors.pacing import Pace, Surplus
from forebay.actors.refusals import Refusals

__all__ = ["Controller", "Decision", "Demand", "Observation"]

# Batches that are ready: with fewer the learner needs more episodes, with more it has more than it needs.
_LOW_BATCHES: Final = 0.5
_HIGH_BATCHES: Final = 1.0
_STARVED: Final = 0.02
# Of the places, so many must be taken for their number to be what limits.
_FULL: Final = 0.85
_FEWER: Final = 0.9
# More places than so many times those taken have not been tried, and are given up.
_UNTRIED: Final = 2.0
# Of the episodes, how many turns tell what their number brings.
_ENOUGH: Final = 0.35
_ENOUGH_OF_A_PROBE: Final = 2.0
# Turns that take so many times longer than with few episodes are reason to go on with care.
_SLOW: Final = 1.5
_LEAST_TURNS: Final = 3.0
_BELOW_REFUSED: Final = 0.93
_PROBE_REFUSED: Final = 1.15
_PROBE_KNEE: Final = 1.5


class Controller:
    """Decides how many episodes of one environment run at once.

    The number doubles once per turn until the learner has enough, or something refuses or slows down. Then
    it grows by an eighth of a batch per episode, and shrinks by a tenth while more is buffered than the
    learner needs. A failure that fewer episodes cure sets a ceiling, and so does a number beyond which turns
    only take longer. A ceiling is tried again after a minute, and after twice as long each time it holds.

    Args:
        environment: Its name, for the reasons.
        batch_episodes: Episodes of the environment in one batch.
        first: Episodes at once in the beginning.
        most: Most episodes at once.

    Attributes:
        most: Most episodes at once.

    References:
        Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance", 1989.
    """

    def __init__(self, environment: str, *, batch_episodes: float, first: int, most: int) -> None:
        self._name = environment
        self._batch_episodes = batch_episodes
        self._first, self.most = min(first, most), most
        self._levels, self._pace = Levels(), Pace(self._first)
        self._ceiling = Bound(math.inf)
        self._floor = Bound(0.0)
        self._refusals, self._surplus = Refusals(), Surplus()
        self._ramps, self._probing = True, False
        self._episode_s = 0.0
        self._held = ""

    @property
    def limit(self) -> float:
        """Episodes at once that are aimed at."""
        return self._pace.limit

    def allowed(self, now_s: float) -> int:
        """Return how many episodes may run now: a larger number is reached little by little."""
        return self._pace.allowed(now_s)

    def resume(self, limit: int, now_s: float) -> None:
        """Go on from a number that another has come to."""
        self._ramps = False
        self._pace.change(float(limit), now_s)

    def look(self, seen: Observation, *, lag_s: float = 0.0) -> Decision | None:
        """Take an observation in; return a decision if there is one, or a new reason to hold.

        Args:
            seen: What happened since the last one.
            lag_s: Until a decision is known wherever episodes run.
        """
        now_s = seen.now_s
        self._pace.lag_s = lag_s
        epoch = self._pace.now(now_s)
        self._levels.late(seen.turns)
        self._pace.drained(seen.live, now_s)
        epoch.note(seen)
        self._surplus.note_live(seen.live, now_s)
        for seconds in seen.episodes_s:
            self._episode_s += (seconds - self._episode_s) * (0.05 if self._episode_s else 1.0)
        if seen.demand is not None:
            self._surplus.note(seen.demand, now_s)
        decision = self._blame(epoch, now_s)
        if decision is None and self._is_over(epoch, now_s):
            decision = self._decide(epoch, now_s)
            if self._pace.epoch is epoch:
                self._pace.begin(now_s)
        return decision

    def _is_over(self, epoch: Epoch, now_s: float) -> bool:
        live = min(epoch.mean_live, self.limit)
        enough = max(_LEAST_TURNS, (_ENOUGH_OF_A_PROBE if self._probing else _ENOUGH) * live)
        if now_s < epoch.settled_s or len(epoch.turns) < enough or not epoch.demands or not epoch.looks:
            return False
        if self._refusals.needs_more(epoch):
            return False
        hasty = self._ramps or self._probing or self._refusals.suspects
        return hasty or now_s >= epoch.began_s + max(self._episode_s, self._pace.turn_s)

    def _change(self, kind: str, limit: float, now_s: float, reason: str) -> Decision | None:
        """Aim at another number of episodes."""
        self._held = ""
        before, after = self._pace.change(min(max(1.0, limit), float(self.most)), now_s)
        return Decision(kind, before, after, reason) if after != before else None

    def _hold(self, why: str, detail: str = "") -> Decision | None:
        """Say why nothing changes, once per reason."""
        if why == self._held:
            return None
        self._held, limit = why, int(self.limit)
        return Decision("held", limit, limit, detail + why)

    def _blame(self, epoch: Epoch, now_s: float) -> Decision | None:
        """Run fewer episodes at once if calls fail, unless fewer have been found not to help."""
        if self._pace.is_falling(now_s):
            # What was under way when fewer were decided upon fails as it would have.
            epoch.failures = epoch.num_turns = 0
            return None
        name, at = self._name, float(self.allowed(now_s))
        blame = self._refusals.judge(epoch, at)
        if blame is None:
            return None
        if not blame.guilty:
            self._ceiling = Bound(math.inf)
            reason = f"{_percent(epoch.failing)} of the calls of `{name}` fail with fewer episodes too"
            return self._change("acquitted", blame.limit, now_s, reason)
        self._ramps = self._probing = False
        self._ceiling.set(
            _BELOW_REFUSED * at, now_s, self._pace.turn_s, f"`{name}` refuses {at:.0f}", refuses=True
        )
        reason = f"{epoch.failures} of {epoch.calls} calls of `{name}` failed"
        return self._change("refused", blame.limit, now_s, reason)

    def _decide(self, epoch: Epoch, now_s: float) -> Decision | None:
        self._refusals.note(epoch)
        if self._is_full(epoch):
            hasty = self._ramps
            self._levels.add(epoch.mean_live, epoch.turns, epoch.settled_s, now_s, hasty=hasty)
            self._pace.turn_s = self._levels.turn_s or 0.0
            knee = self._levels.knee(epoch.mean_live, sure=not self._probing, hasty=hasty)
            if knee is not None and knee.level < _FEWER * self.limit:
                return self._back_off(knee, now_s)
        if self._probing:
            self._probing = False
            self._ceiling.lift()
        starved = epoch.starved > _STARVED
        if self._wants_more(epoch):
            if starved and not self._ramps:
                self._floor.set(self.limit, now_s, self._pace.turn_s)
            return self._more(epoch, now_s)
        if not starved and epoch.batches >= _LOW_BATCHES:
            self._ramps = False
        return self._fewer(epoch, now_s)

    def _is_full(self, epoch: Epoch) -> bool:
        """Return whether places were what there was not enough of."""
        return epoch.mean_live >= _FULL * int(self.limit)

    def _wants_more(self, epoch: Epoch) -> bool:
        starved = epoch.starved > _STARVED and epoch.batches < _HIGH_BATCHES
        limits = self._is_full(epoch) and 2 * epoch.waits >= epoch.looks
        return limits and (starved or epoch.batches < _LOW_BATCHES)

    def _back_off(self, knee: Knee, now_s: float) -> Decision | None:
        whose = (
            f"steps of `{self._name}`"
            if knee.of_environment
            else f"the generator's answers to `{self._name}`"
        )
        reason = f"{whose} {knee.slower:.1f}x slower for no more answers"
        self._ramps = self._probing = False
        self._ceiling.set(
            knee.level, now_s, self._pace.turn_s, f"more make {whose} slower, and bring no more"
        )
        return self._change("slower", knee.level, now_s, reason)

    def _more(self, epoch: Epoch, now_s: float) -> Decision | None:
        reason = f"learner starved {_percent(epoch.starved)}"
        if epoch.starved <= _STARVED:
            reason = f"{epoch.batches:.1f} batches of `{self._name}` are ready"
        if self.limit >= self.most:
            return self._hold("actors.max_episodes_per_process allows no more", f"{reason}, but ")
        ceiling = self._ceiling
        room = ceiling.level - self.limit
        if room < max(1.0, 0.03 * self.limit):
            if now_s < ceiling.probe_s:
                return self._hold(ceiling.why, f"{reason}, but ")
            factor = _PROBE_REFUSED if ceiling.refuses else _PROBE_KNEE
            ceiling.level = max(ceiling.level, self.limit) * factor
            self._probing = True
            return self._change(
                "probe", max(self.limit + 1.0, ceiling.level), now_s, f"{reason}: tried again"
            )
        is_slow = self._levels.slowness(epoch.mean_live, hasty=self._ramps) > _SLOW
        self._ramps = self._ramps and not is_slow
        if self._ramps:
            return self._change("more", min(2.0 * self.limit, ceiling.level), now_s, reason)
        step = max(1.0, self._batch_episodes / 8.0)
        step = step if is_slow else max(step, 0.5 * epoch.starved * self.limit)
        if math.isfinite(room):
            step = min(step, max(1.0, 0.5 * room))
        return self._change("more", self.limit + step, now_s, reason)

    def _fewer(self, epoch: Epoch, now_s: float) -> Decision | None:
        if epoch.steps < 1:
            return self._hold("the learner takes nothing") if epoch.batches >= _HIGH_BATCHES else None
        untried = max(self._first, _UNTRIED * self._surplus.most_live)
        if untried < self.limit and not epoch.waits:
            return self._change("idle", untried, now_s, "the store has no more work: the credit is used up")
        if not self._is_full(epoch) or not self._surplus.has_lasted(self._episode_s, now_s):
            return None
        limit = _FEWER * self.limit
        if limit < self._first or (limit <= self._floor.level and now_s < self._floor.probe_s):
            return None
        self._surplus.spend()
        return self._change("fewer", limit, now_s, f"{epoch.batches:.1f} batches of `{self._name}` are ready")


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"
