"""What was measured, as the records that scripts read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.store.bench.processes import Sample

# A quantile is told only if at least this many samples lie beyond it.
_BEYOND: Final = 5


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles in milliseconds; None where there are too few samples for one.

    Args:
        samples: How many were timed.
        p50: Median.
        p99: 99th percentile.
        p999: 99.9th percentile.
    """

    samples: int
    p50: float | None
    p99: float | None
    p999: float | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, or one limit of the machine.

    Args:
        puts_per_s: Trajectories or records of all writers.
        put_ms: From the call, or the moment at which it was due, to its return.
        take_ms: From there to the moment at which the reader has it decoded; waiting for its batch included.
        cpu_ms: CPU time for each, summed over all processes, a server's included.
        slowest_writer: Rate of the slowest writer over the mean rate.
        drained_puts_per_s: The rate while the reader only removes what arrives; to be compared with the bare
            engine, whose reader does no more.
        paced: The same at a quarter of the rate.
    """

    puts_per_s: float
    put_ms: Latency
    take_ms: Latency | None
    cpu_ms: float
    slowest_writer: float
    drained_puts_per_s: float | None = None
    paced: Figures | None = None


def latency(seconds: npt.NDArray[np.float64]) -> Latency:
    """Return the quantiles of latencies.

    Args:
        seconds: [N] float64.

    Example:
        >>> latency(np.full(1000, 0.002)).p99
        2.0
        >>> latency(np.full(1000, 0.002)).p999 is None
        True
    """

    def quantile(q: float) -> float | None:
        return float(1e3 * np.quantile(seconds, q)) if len(seconds) * (1.0 - q) >= _BEYOND else None

    return Latency(samples=len(seconds), p50=quantile(0.5), p99=quantile(0.99), p999=quantile(0.999))


def summarize(
    writers: Sequence[Sample], readers: Sequence[Sample], window_s: float, server_cpu_s: float = 0.0
) -> Figures:
    """Return the figures of one layout.

    Args:
        writers: What each writer did.
        readers: What the reader did, if there was one.
        window_s: Seconds that counted.
        server_cpu_s: CPU time of a server within them.
    """
    done = [sample.done for sample in writers]
    put = max(1, sum(done))
    # Within a short window more is put than taken, or less: each side is shared by what it did itself.
    cpu_s = (server_cpu_s + sum(sample.cpu_s for sample in writers)) / put
    cpu_s += sum(sample.cpu_s / (sample.done or put) for sample in readers)
    taken = [sample.latencies_s for sample in readers]
    return Figures(
        puts_per_s=sum(done) / window_s,
        put_ms=latency(np.concatenate([sample.latencies_s for sample in writers])),
        take_ms=latency(np.concatenate(taken)) if taken else None,
        cpu_ms=1e3 * cpu_s,
        slowest_writer=min(done) * len(done) / put,
    )
