"""Failures that come from too many episodes at once, told from those that come anyway."""

from __future__ import annotations

from typing import Final, NamedTuple

from forebay.actors.observing import Epoch

# Refusals: more of the calls than this fail, and twice as many as fail anyway.
_FAILING: Final = 0.02
_LEAST_FAILURES: Final = 3
# So many calls tell whether fewer episodes fail less; they do if less than this part of the share is left.
_LEAST_CALLS: Final = 24
_STILL: Final = 0.6
# It takes several cuts to find out.
_CUTS: Final = 3
# The larger the share that fails, the fewer episodes: a twentieth fewer and twice that share, within these.
_FEWER: Final = 0.9
_FEWEST: Final = 0.5
_FORGETS: Final = 0.1
# An environment of which so many calls fail is of no use however many there are: it is spared in any case.
_REFUSED: Final = 0.3


class Blame(NamedTuple):
    """What failures say about the number of episodes.

    Attributes:
        limit: How many may run now.
        guilty: Whether that many were too many; else fewer fail as well.
    """

    limit: float
    guilty: bool


class Refusals:
    """Whether calls fail because there are too many of them.

    Failures are suspected to be refusals, and fewer episodes are run, several times over. If as many of the
    calls still fail then, they fail anyway, and the number is restored.

    Attributes:
        failing_anyway: Share of the calls that fail however few there are, 0 to 1.
    """

    def __init__(self) -> None:
        self.failing_anyway = 0.0
        self._good = 0.0
        self._suspect: tuple[float, float, int] | None = None

    @property
    def suspects(self) -> bool:
        """Whether it is being found out if fewer episodes fail less."""
        return self._suspect is not None

    def needs_more(self, epoch: Epoch) -> bool:
        """Return whether the number has to stay until it is found out."""
        return self._suspect is not None and not self._is_cured(epoch)

    def judge(self, epoch: Epoch, allowed: float) -> Blame | None:
        """Return what the failures of an epoch say; None for nothing.

        Args:
            epoch: What was seen.
            allowed: Episodes that may run now.
        """
        if epoch.failures < _LEAST_FAILURES or not self._is_failing(epoch):
            if self._is_cured(epoch):
                self._suspect = None
            return None
        before, share, cuts = self._suspect or (allowed, epoch.failing, 0)
        if epoch.failing > _REFUSED:
            cuts = 0
        cuts = cuts + 1 if epoch.failing > _STILL * share else 1
        if cuts > _CUTS or (allowed <= 1.0 and cuts > 1):
            if epoch.calls < _LEAST_CALLS:
                return None
            self.failing_anyway, self._suspect = epoch.failing, None
            return Blame(before, guilty=False)
        if allowed <= 1.0:
            return None
        self._suspect = before, max(share, epoch.failing), cuts
        good = self._good if self._good < allowed else 0.0
        part = 0.95 - 2.0 * epoch.failing
        limit = allowed * min(max(part, good / allowed, _FEWEST), _FEWER)
        self._good = min(self._good, limit)
        return Blame(limit, guilty=True)

    def note(self, epoch: Epoch) -> None:
        """Note an epoch that has ended in order."""
        if not self._is_failing(epoch):
            self._good = max(self._good, epoch.mean_live)
        self.failing_anyway += _FORGETS * min(0.0, epoch.failing - self.failing_anyway)

    def _is_cured(self, epoch: Epoch) -> bool:
        """Return whether fewer episodes have been seen to fail less."""
        share = self._suspect[1] if self._suspect is not None else 1.0
        return epoch.calls >= _LEAST_CALLS and epoch.failing <= _STILL * share

    def _is_failing(self, epoch: Epoch) -> bool:
        return epoch.failing > max(_FAILING, 2.0 * self.failing_anyway)
