"""Back-off: a peer that fails is asked again, less and less often, but not for ever."""

from __future__ import annotations

from collections.abc import Callable

from forebay.actors.settings import ActorSettings
from forebay.errors import ForebayError, PeerFailedError


class Backoff:
    """When a peer may be asked again.

    Args:
        peer: What it is called in errors.
        first_s: Wait after the first failure; doubles with each further one.
        max_s: Longest wait.
        patience_s: Failing for longer than this is final; failures further apart are not related.
        now_s: Source of monotonic time.

    Example:
        >>> backoff = Backoff("generator", first_s=1.0, max_s=8.0, patience_s=60.0, now_s=lambda: 100.0)
        >>> backoff.failed(ForebayError("connection refused"))
        >>> backoff.left_s
        1.0
    """

    def __init__(
        self, peer: str, *, first_s: float, max_s: float, patience_s: float, now_s: Callable[[], float]
    ) -> None:
        self._peer = peer
        self._first_s = first_s
        self._max_s = max_s
        self._patience_s = patience_s
        self._now_s = now_s
        self.succeeded()

    @classmethod
    def of(cls, peer: str, settings: ActorSettings, now_s: Callable[[], float]) -> Backoff:
        """Return the back-off that the settings describe."""
        return cls(
            peer,
            first_s=settings.backoff_s,
            max_s=settings.backoff_max_s,
            patience_s=settings.peer_patience_s,
            now_s=now_s,
        )

    @property
    def left_s(self) -> float:
        """Time until the peer may be asked again."""
        return max(0.0, self._until_s - self._now_s())

    def succeeded(self) -> None:
        """Forget the failures so far."""
        self._next_s = self._first_s
        self._until_s = 0.0
        self._since_s: float | None = None
        self._last_s = 0.0

    def failed(self, error: ForebayError) -> None:
        """Note a failure; those within one wait count as one.

        Raises:
            PeerFailedError: The peer has failed for longer than `patience_s`.
        """
        now_s = self._now_s()
        if self._since_s is None or now_s - self._last_s > self._patience_s:
            self._since_s = now_s
        self._last_s = now_s
        failing_s = now_s - self._since_s
        if failing_s > self._patience_s:
            raise PeerFailedError(
                f"{self._peer} keeps failing: {error}",
                got=f"{failing_s:.0f} s",
                limit=f"actors.peer_patience_s={self._patience_s:g}",
            ) from error
        if not self.left_s:
            self._until_s = now_s + self._next_s
            self._next_s = min(2.0 * self._next_s, self._max_s)
