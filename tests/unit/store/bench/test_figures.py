from __future__ import annotations

import numpy as np

from forebay.store.bench.figures import latency, summarize
from forebay.store.bench.processes import Sample


def sample(done: int, cpu_s: float, *latencies_s: float) -> Sample:
    return Sample(done, cpu_s, np.array(latencies_s))


def test_a_quantile_needs_samples_beyond_it() -> None:
    assert latency(np.array([])).p50 is None
    few = latency(np.linspace(0.0, 0.499, 500))
    assert few.samples == 500
    assert few.p50 is not None and abs(few.p50 - 249.5) < 1e-6
    assert few.p99 is not None and abs(few.p99 - 494.01) < 1e-6
    assert few.p999 is None
    assert latency(np.linspace(0.0, 0.499, 499)).p99 is None
    assert latency(np.ones(5000)).p999 == 1000.0


def test_cpu_time_of_all_processes_is_shared_by_what_came_through() -> None:
    writers = [sample(300, 0.2, *[0.001] * 300), sample(100, 0.1, *[0.002] * 100)]
    found = summarize(writers, [sample(200, 0.5, *[0.05] * 200)], window_s=2.0, server_cpu_s=0.2)
    assert found.puts_per_s == 200.0
    assert abs(found.cpu_ms - 1e3 * (0.5 / 400 + 0.5 / 200)) < 1e-9
    assert found.slowest_writer == 0.5
    assert found.put_ms.samples == 400 and found.take_ms is not None and found.take_ms.p50 == 50.0


def test_without_a_reader_there_is_no_take() -> None:
    found = summarize([sample(50, 0.1, *[0.001] * 50)], (), window_s=1.0)
    assert found.take_ms is None
    assert abs(found.cpu_ms - 2.0) < 1e-9
