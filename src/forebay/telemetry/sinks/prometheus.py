"""The newest metrics for a Prometheus server to scrape, on this machine only."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forebay.telemetry.metrics import Value

MAX_NAMES: Final = 2000
_HOST: Final = "127.0.0.1"
_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")


class PrometheusSink:
    """Serves the newest value of each metric as a gauge `forebay_NAME{run="RUN_ID"}`, dots as underscores.

    Args:
        port: Port of 127.0.0.1.
        run_id: Unique name of the run.

    Attributes:
        num_refused: Metrics left out because there were `MAX_NAMES` already.
    """

    def __init__(self, port: int, run_id: str) -> None:
        package: Any = importlib.import_module("prometheus_client")
        self._gauge: Any = importlib.import_module("prometheus_client.core").GaugeMetricFamily
        self._run_id = run_id
        self._newest: dict[str, tuple[str, float]] = {}
        self.num_refused = 0
        registry = package.CollectorRegistry()
        registry.register(self)
        self._server, self._thread = _serve(package, port, registry)

    def write(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Replace the values of every number; what a record leaves out keeps its last value."""
        newest = dict(self._newest)
        for name, value in {**values, "step": step, "time_s": time_s}.items():
            exposed = prometheus_name(name)
            if not isinstance(value, int | float):
                continue
            if exposed in newest or len(newest) < MAX_NAMES:
                newest[exposed] = (name, float(value))
            else:
                self.num_refused += 1
        self._newest = newest

    def collect(self) -> Iterator[Any]:
        """Yield the newest values; called by the server for each scrape."""
        for exposed, (name, value) in self._newest.items():
            gauge = self._gauge(exposed, f"{name} of metrics.jsonl", labels=("run",))
            gauge.add_metric((self._run_id,), value)
            yield gauge

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def prometheus_name(name: str) -> str:
    """Return the name of a metric as Prometheus allows it.

    Example:
        >>> prometheus_name("latency.calculator.step_s.p95")
        'forebay_latency_calculator_step_s_p95'
    """
    return f"forebay_{_UNSAFE.sub('_', name)}"


def _serve(package: Any, port: int, registry: Any) -> tuple[Any, threading.Thread]:
    server, thread = package.start_http_server(port, addr=_HOST, registry=registry)
    return server, thread
