from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from forebay.telemetry.sinks.prometheus import MAX_NAMES, PrometheusSink

parser = pytest.importorskip("prometheus_client.parser")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def scrape(port: int) -> dict[str, tuple[float, dict[str, str]]]:
    """Read what is served as Prometheus does."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
        text = answer.read().decode()
    return {
        sample.name: (sample.value, sample.labels)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def served() -> Iterator[tuple[PrometheusSink, int]]:
    port = free_port()
    sink = PrometheusSink(port, "calculator-1f")
    yield sink, port
    sink.close()


def test_the_newest_values_are_served(served) -> None:
    sink, port = served
    sink.write(1, 10.0, {"busy": 0.25, "reward": 0.5, "groups": "g1"})
    sink.write(2, 11.0, {"busy": 0.5, "reward": None, "latency.my-web.step_s.p95": 2.0})
    run = {"run": "calculator-1f"}
    assert scrape(port) == {
        "forebay_step": (2.0, run),
        "forebay_time_s": (11.0, run),
        "forebay_busy": (0.5, run),
        "forebay_reward": (0.5, run),
        "forebay_latency_my_web_step_s_p95": (2.0, run),
    }


def test_only_this_machine_is_served(served) -> None:
    sink, _ = served
    assert sink._server.server_address[0] == "127.0.0.1"


def test_the_number_of_names_is_bounded(served) -> None:
    sink, port = served
    sink.write(1, 0.0, {f"environment.name{i}": 1.0 for i in range(MAX_NAMES + 100)})
    assert sink.num_refused == 102  # step and time_s are names too
    assert len(scrape(port)) == MAX_NAMES


def test_a_port_that_is_taken_is_an_error(served) -> None:
    _, port = served
    with pytest.raises(OSError, match="in use"):
        PrometheusSink(port, "other")
