from __future__ import annotations

import pytest

from forebay.learner.fit.chips import parse_topology
from forebay.learner.fit.plan import Plan
from forebay.learner.fit.roofline import axis_bytes_per_s, roofline
from forebay.learner.fit.work import Collective, Work
from forebay.models.settings import MeshSettings

V5P = parse_topology("v5p:4x4x4")


@pytest.mark.parametrize(
    ("mesh", "rates"),
    [
        (MeshSettings(fsdp=64), {"fsdp": 600e9}),
        (MeshSettings(fsdp=16, tensor=4), {"fsdp": 400e9, "tensor": 200e9}),
        (MeshSettings(data=4, fsdp=4, tensor=4), {"data": 200e9, "fsdp": 200e9, "tensor": 200e9}),
        # Eight is no product of dimensions of four: a part of one, used one way.
        (MeshSettings(fsdp=8, tensor=8), {"fsdp": 100e9, "tensor": 100e9}),
    ],
)
def test_axes_take_dimensions_of_the_network(mesh: MeshSettings, rates: dict[str, float]) -> None:
    assert axis_bytes_per_s(mesh, V5P) == rates


def test_a_step_is_as_slow_as_the_slowest_of_what_it_waits_for() -> None:
    plan = Plan(MeshSettings(fsdp=16, tensor=4), 16, 4096, 1, "full")
    sent = (Collective("fsdp", "all-gather", 1, int(400e9)), Collective("fsdp+tensor", "all-reduce", 1, 1))
    line = roofline(Work(1e18, 459e12 / 2, 2.765e12 / 4, sent), plan, V5P)
    assert (line.compute_s, line.memory_s) == (0.5, 0.25)
    assert dict(line.network_s) == {"fsdp": 1.0, "fsdp+tensor": pytest.approx(1 / 200e9)}
    assert (line.step_s, line.bound) == (1.0, "fsdp")


def test_a_device_of_a_chip_with_two_has_half_of_it() -> None:
    topology = parse_topology("tpu7x:2x2x1")
    plan = Plan(MeshSettings(fsdp=8), 8, 4096, 1, "full")
    line = roofline(Work(0.0, 2307e12, 0.0, ()), plan, topology)
    assert line.compute_s == 2.0
