"""When a simulated pool looks for work, and at the generator's version."""

from __future__ import annotations


class SeenVersion:
    """The generator's version as a pool knows it: it looks every so often, when it claims.

    Args:
        period_s: Time between two looks.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._version, self._until_s = 0, 0.0

    def look(self, now_s: float, version: int) -> int:
        """Return the version that the pool goes by.

        Args:
            now_s: Virtual time.
            version: The generator's.

        Example:
            >>> seen = SeenVersion(0.5)
            >>> seen.look(0.0, 3), seen.look(0.4, 4), seen.look(0.6, 4)
            (3, 3, 4)
        """
        if now_s >= self._until_s:
            self._version, self._until_s = version, now_s + self._period_s
        return self._version


class Polls:
    """When an idle pool looks for work: at waits that double from the last claim on, as the product's does.

    Args:
        first_s: First wait.
        longest_s: Longest wait.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = min(first_s, longest_s), longest_s
        self._pause_s, self._looked_s = self._first_s, 0.0

    def claimed(self, now_s: float) -> None:
        """Note that there was work."""
        self._pause_s, self._looked_s = self._first_s, now_s

    def idle(self, now_s: float) -> None:
        """Note that a look found nothing."""
        self._looked_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long it is until the next look.

        Example:
            >>> polls = Polls(0.05, 0.5)
            >>> polls.idle(0.0)
            >>> round(polls.wait_s(0.04), 3), round(polls.wait_s(0.06), 3)  # at 0.05, at 0.15
            (0.01, 0.09)
        """
        if self._longest_s <= 0.0:
            return 0.0
        while self._looked_s + self._pause_s < now_s:
            if self._pause_s >= self._longest_s:
                missed = (now_s - self._looked_s) // self._pause_s
                self._looked_s += missed * self._pause_s
                break
            self._looked_s += self._pause_s
            self._pause_s = min(2.0 * self._pause_s, self._longest_s)
        return max(0.0, self._looked_s + self._pause_s - now_s)
