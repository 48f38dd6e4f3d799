"""Publishes weights beside the training loop, the newest first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from forebay.trajectory import PolicyVersion

Publish = Callable[[PolicyVersion, Any], None]


class Publisher:
    """Writes one version at a time in the background; a version that is overtaken while it waits is skipped.

    Consumes: host copies of the parameters. Waits for: the file system. Produces: versions, in order.

    Args:
        publish: Writes one version and tells the store; runs in the background thread.
        on_start: Runs first in the background thread.
    """

    def __init__(self, publish: Publish, on_start: Callable[[], None] = lambda: None) -> None:
        self._publish = publish
        self._lock = threading.Lock()
        self._waiting: tuple[PolicyVersion, Any] | None = None
        self._executor = ThreadPoolExecutor(1, "publish", initializer=on_start)
        # The oldest first: none is forgotten before it has ended well.
        self._submitted: deque[Future[None]] = deque()

    def submit(self, version: PolicyVersion, params: Any) -> None:
        """Hand over a host copy of the parameters; returns at once.

        Raises:
            Exception: Whatever an earlier publication failed with.
        """
        self.check()
        with self._lock:
            self._waiting = (version, params)
        self._submitted.append(self._executor.submit(self._publish_waiting))

    def check(self) -> None:
        """Raise what the first publication that failed failed with, if one did; never wait."""
        while self._submitted and self._submitted[0].done():
            self._submitted[0].result()
            self._submitted.popleft()

    def flush(self) -> None:
        """Wait until everything handed over is published or overtaken.

        Raises:
            Exception: Whatever a publication failed with, be it overtaken since.
        """
        wait(self._submitted)
        self.check()

    def close(self) -> None:
        """Publish what waits, then end the thread."""
        self._executor.shutdown(wait=True)

    def _publish_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._publish(*waiting)
