"""Telemetry: spans, counters and metrics of a run."""
