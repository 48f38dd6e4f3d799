"""Sinks in threads of their own: whatever happens to one of them, the run goes on."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final

from forebay.telemetry.metrics import MetricsWriter, Value
from forebay.telemetry.sinks.protocol import MetricSink, SinkOpener

_CAPACITY: Final = 64
_CLOSE_TIMEOUT_S: Final = 60.0
_log = logging.getLogger(__name__)

_Record = tuple[int, float, Mapping[str, Value]]


class SinkThread:
    """Feeds one sink.

    Consumes: records. Waits for: the next one. Unblocked by: `write`, `close`. Produces: calls of the sink.

    A record that the sink refuses, or that finds `capacity` others waiting, is lost and counted; the first
    fault is reported. A sink that cannot be opened is not tried again.

    Args:
        name: The sink, as a person calls it.
        open_sink: Opens it, inside the thread.
        capacity: Most records that wait.
        on_start: Runs first in the thread.

    Attributes:
        num_lost: Records that did not reach the sink.
    """

    def __init__(
        self,
        name: str,
        open_sink: SinkOpener,
        *,
        capacity: int = _CAPACITY,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.num_lost = 0
        self._open_sink = open_sink
        self._on_start = on_start
        self._sink: MetricSink | None = None
        self._is_broken = False
        self._is_reported = False
        self._queue: queue.Queue[_Record | None] = queue.Queue(capacity)
        # A daemon: a sink that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"metrics to {name}", daemon=True)
        self._thread.start()

    def write(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Hand over one record; returns at once."""
        try:
            self._queue.put_nowait((step, time_s, values))
        except queue.Full:
            self.num_lost += 1

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Let the sink finish; after `timeout_s` seconds it is left alone."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            pass
        else:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("metrics to %s: it did not finish within %.0f s", self.name, timeout_s)

    def failed(self, error: BaseException) -> None:
        """Count a record that was lost, and report the first."""
        self.num_lost += 1
        if not self._is_reported:
            self._is_reported = True
            _log.warning("metrics to %s are lost: %s: %s", self.name, type(error).__name__, error)

    def _run(self) -> None:
        self._on_start()
        while (record := self._queue.get()) is not None:
            with _Boundary(self):
                self._deliver(*record)
        with _Boundary(self):
            if self._sink is not None:
                self._sink.close()

    def _deliver(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        if self._is_broken:
            self.num_lost += 1
            return
        if self._sink is None:
            self._is_broken = True
            self._sink = self._open_sink(step)
            self._is_broken = False
        self._sink.write(step, time_s, values)


class _Boundary:
    """Keeps the errors of a foreign package from the run, whatever their types; the package names none."""

    def __init__(self, owner: SinkThread) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._owner.failed(error)
        return True


class MetricSinks:
    """`metrics.jsonl`, always and first, and then the other places.

    Args:
        writer: The file.
        threads: The other places.
    """

    def __init__(self, writer: MetricsWriter, threads: Sequence[SinkThread] = ()) -> None:
        self._writer = writer
        self._threads = tuple(threads)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one record everywhere.

        A place that has lost records is named in it: `sink.NAME.lost`.

        Raises:
            OSError: The file cannot be written; nothing else ends a run.
        """
        lost: dict[str, Value] = {f"sink.{t.name}.lost": t.num_lost for t in self._threads if t.num_lost}
        record = {**values, **lost}
        self._writer.write(step, record)
        self.write_elsewhere(step, self._writer.written_s, record)

    def write_elsewhere(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Write a record that a file has already to the other places only."""
        for thread in self._threads:
            thread.write(step, time_s, values)

    def close(self) -> None:
        """Let every place finish; the file stays its owner's to close."""
        for thread in self._threads:
            thread.close()
