"""One real run that several tests look at: trained once, with everything on that tells about it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.system.harness import CONFIG, ROOT, environment, forebay

STEPS = 6
_END_S = 300.0


class Told(NamedTuple):
    """A run that has ended, with everything on that tells about it.

    Attributes:
        path: Its directory; whoever changes something there takes a copy.
        output: What `forebay train` printed.
        scraped: What Prometheus got last, by name; empty where its client is not installed.
    """

    path: Path
    output: str
    scraped: dict[str, float]


def train_and_listen(directory: Path) -> Told:
    """Train a few steps, with samples of every second one, timelines, and every sink that is installed."""
    port = _free_port()
    sinks = {
        "tensorboardX": "telemetry.tensorboard=true",
        "wandb": 'telemetry.wandb="offline"',
        "prometheus_client": f"telemetry.prometheus_port={port}",
    }
    command = [
        *forebay("train"), str(CONFIG), f"run.directory={directory}", "run.name=told",
        f"learner.steps={STEPS}", "learner.eval_every=0", "learner.sample_every=2", "telemetry.trace_every=2",
        *(setting for module, setting in sinks.items() if find_spec(module)),
    ]  # fmt: skip
    log = directory / "train.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        scraped: dict[str, float] = {}
        deadline_s = time.monotonic() + _END_S
        while process.poll() is None and time.monotonic() < deadline_s:
            scraped = _scrape(port) or scraped
            time.sleep(0.1)
        process.kill()
        process.wait()
    assert process.returncode == 0, log.read_text()
    return Told(directory / "told", log.read_text(), scraped)


def _scrape(port: int) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    samples = re.findall(r"^(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in samples}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
