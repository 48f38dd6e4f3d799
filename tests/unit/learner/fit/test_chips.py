from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.learner.fit.chips import CHIPS, parse_topology


@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v4:2x2x1", 4, 4),
        ("v5e:4x4", 16, 16),
        ("v5p:4x8x8", 256, 256),
        ("tpu7x:4x4x4", 64, 128),
        ("gpu:h100x8", 8, 8),
        ("cpu:8", 8, 8),
    ],
)
def test_topologies_count_chips_and_devices(name: str, chips: int, devices: int) -> None:
    topology = parse_topology(name)
    assert (topology.num_chips, topology.num_devices) == (chips, devices)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5x:4x4", "limit v4, v5e, v5p"),
        ("v6:4x4", "Did you mean v6e:...?"),
        ("v5p:8x8", "v5p:AxBxC"),
        ("v5e:4x4x4", "v5e:AxB"),
        ("v5e:0x4", "v5e:AxB"),
        ("v5e", "v5e:AxB"),
        ("v5p:16x16x16", "limit 1024"),
        ("v6e:16x32", "limit 256"),
        ("v5p:3x4x4", "even numbers in the first two dimensions"),
        ("v5e:1x1", "hosts of 2 x 2"),
        ("gpu:h100", "no such topology"),
    ],
)
def test_what_is_no_topology_is_refused_with_a_form(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"topology|chips") as caught:
        parse_topology(name)
    assert said in str(caught.value)


def test_peaks_are_those_that_the_makers_publish() -> None:
    per_s = {name: (chip.flops_per_s, chip.memory_bytes_per_s) for name, chip in CHIPS.items()}
    assert per_s["v5e"] == (197e12, 819e9)
    assert per_s["v5p"] == (459e12, 2.765e12)
    assert per_s["v6e"] == (918e12, 1.638e12)
    assert per_s["tpu7x"] == (2307e12, 7.38e12)
    # The documentation gives what a chip sends and receives over all of its links: two a dimension.
    both_ways = {name: 4 * chip.num_dims * chip.link_bytes_per_s for name, chip in CHIPS.items()}
    assert (both_ways["v5e"], both_ways["v5p"], both_ways["v6e"]) == (400e9, 1200e9, 800e9)
    assert both_ways["tpu7x"] == 1200e9


def test_only_a_whole_ring_is_used_both_ways() -> None:
    pod = parse_topology("v5e:16x16")
    assert (pod.dim_bytes_per_s(16), pod.dim_bytes_per_s(4)) == (100e9, 50e9)
    assert parse_topology("v5p:4x4x4").dim_bytes_per_s(4) == 200e9
