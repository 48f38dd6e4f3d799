"""Picks up new weights while the generator runs; no JAX is imported here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

from forebay.clock import Clock
from forebay.errors import ModelError, PeerFailedError, WeightsError
from forebay.trajectory import PolicyVersion

log = logging.getLogger(__name__)


class WeightSource(Protocol):
    """Where published weights are found."""

    def latest(self) -> PolicyVersion | None:
        """Return the version that the marker names; cheap."""
        ...

    def load(self, version: PolicyVersion | None = None) -> tuple[PolicyVersion, Mapping[str, np.ndarray]]:
        """Return a version and its tensors by Hugging Face name."""
        ...


class WatchCounters(msgspec.Struct):
    """What the watcher saw: versions loaded, versions refused as older, failed looks and the last reason."""

    loaded: int = 0
    refused: int = 0
    failures: int = 0
    last_failure: str = ""


class WeightWatcher:
    """Polls for newer weights and hands them on.

    Versions are ordered by (incarnation, version). An older one is refused and counted: a learner that
    restarts and briefly serves its first weights must not take the generators back.

    Args:
        source: Where weights are found.
        deliver: Called with every newer version and its tensors, from the watcher's thread.
        poll_s: Time between two looks.
    """

    def __init__(
        self,
        source: WeightSource,
        deliver: Callable[[PolicyVersion, Mapping[str, np.ndarray]], Any],
        poll_s: float,
    ) -> None:
        self._source, self._deliver, self._poll_s = source, deliver, poll_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused: PolicyVersion | None = None
        self.version: PolicyVersion | None = None
        self.counters = WatchCounters()

    def first(self, timeout_s: float, clock: Clock) -> tuple[PolicyVersion, Mapping[str, np.ndarray]]:
        """Wait for the first version and return it.

        Raises:
            PeerFailedError: Nothing was published within `timeout_s`, or `stop` was called.
            WeightsError: What is published cannot be read.
        """
        give_up_s = clock.monotonic_s() + timeout_s
        while self._source.latest() is None:
            if self._stopping.wait(self._poll_s):
                raise PeerFailedError("stopped before any weights were published")
            if clock.monotonic_s() >= give_up_s:
                raise PeerFailedError(
                    f"no weights were published within {timeout_s:g} s",
                    remedy="Look at the learner's log, or raise generator.first_weights_timeout_s.",
                )
        self.version, tensors = self._source.load(None)
        return self.version, tensors

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Look once; load and deliver what is newer. Return whether there was something."""
        latest = self._source.latest()
        if latest is None or latest == self.version:
            return False
        if self.version is not None and latest < self.version:
            self._refuse(latest)
            return False
        version, tensors = self._source.load(latest)
        self._deliver(version, tensors)
        self.version = version
        self.counters.loaded += 1
        return True

    def _refuse(self, version: PolicyVersion) -> None:
        if version != self._refused:
            log.warning("refused weights %s: older than %s", tuple(version), tuple(self.version or ()))
            self.counters.refused += 1
        self._refused = version

    def _run(self) -> None:
        """Watch loop.

        Consumes: published versions. Waits for: the poll interval. Unblocked by: time, `stop`. Produces:
        deliveries. A version that cannot be read is counted and tried again; the weights being served stay.
        """
        while not self._stopping.wait(self._poll_s):
            try:
                self.look()
            except (WeightsError, ModelError) as error:
                if str(error) != self.counters.last_failure:
                    log.warning("cannot load new weights: %s", error)
                self.counters.failures += 1
                self.counters.last_failure = str(error)
