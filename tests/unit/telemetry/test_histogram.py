import msgspec
import numpy as np
import pytest

from forebay.telemetry.histogram import Histogram, merge


def histogram_of(values):
    histogram = Histogram()
    for value in values:
        histogram.add(float(value))
    return histogram


def test_percentiles_are_within_one_percent_of_the_exact_ones():
    values = np.random.default_rng(3).lognormal(0, 1.5, 5000)
    summary = histogram_of(values).summary()
    for name, fraction in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = np.quantile(values, fraction, method="inverted_cdf")
        assert getattr(summary, name) == pytest.approx(exact, rel=0.0101)
    assert summary.count == 5000
    assert summary.mean == pytest.approx(values.mean())
    assert summary.max == values.max()


def test_one_value_is_every_percentile_exactly():
    summary = histogram_of([0.123]).summary()
    assert (summary.p50, summary.p95, summary.p99, summary.max) == (0.123,) * 4


def test_merging_equals_counting_together_and_survives_json():
    values = np.random.default_rng(4).lognormal(0, 1, 300)
    parts = [histogram_of(part) for part in np.split(values, 3)]
    parts.append(Histogram())
    sent = [msgspec.json.decode(msgspec.json.encode(part), type=Histogram) for part in parts]
    merged, together = merge(sent), histogram_of(values)
    assert merged.counts == together.counts
    assert (merged.smallest, merged.largest) == (values.min(), values.max())
    assert merged.total == pytest.approx(together.total)
    assert merge([]).summary() == Histogram().summary()


def test_memory_is_bounded_over_fifteen_decades_and_ends_count_as_borders():
    histogram = histogram_of([*np.logspace(-12, 12, 20_000), 0.0])
    assert len(histogram.counts) < 1800
    assert histogram.percentile(0) == pytest.approx(1e-6, rel=0.02)
    assert histogram.summary().max == pytest.approx(1e12)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_values_that_are_no_latency_are_refused(value):
    with pytest.raises(ValueError, match="finite and at least 0"):
        Histogram().add(value)
