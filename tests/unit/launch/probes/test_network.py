from __future__ import annotations

import socket

import pytest

from forebay.launch.probes import network


def test_loopback_accepts_connections() -> None:
    assert network.look_at_loopback()[0].level == "ok"


@pytest.mark.parametrize(("needed", "level"), [(True, "bad"), (False, "warn")])
def test_a_taken_port_is_worse_if_a_run_needs_it(needed: bool, level: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [finding] = network.look_at_port("127.0.0.1", port, needed=needed)
    assert finding.level == level
    assert finding.seen == f"127.0.0.1:{port}: Address already in use"
    assert "generator.port=0" in finding.remedy
    assert network.look_at_port("127.0.0.1", 0, needed=needed)[0].level == "ok"
