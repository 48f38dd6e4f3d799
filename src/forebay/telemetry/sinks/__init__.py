"""Where the metrics of a run go besides `metrics.jsonl`; each place is an optional package."""

from forebay.telemetry.sinks.opening import SinkContext, check_sinks, make_sinks
from forebay.telemetry.sinks.protocol import MetricLog, MetricSink, SinkOpener, chart_values
from forebay.telemetry.sinks.threads import MetricSinks, SinkThread

__all__ = [
    "MetricLog",
    "MetricSink",
    "MetricSinks",
    "SinkContext",
    "SinkOpener",
    "SinkThread",
    "chart_values",
    "check_sinks",
    "make_sinks",
]
