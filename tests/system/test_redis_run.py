"""A whole run over a Redis server that asks for a password, and is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forebay.telemetry.summary import RunSummary, read_summary
from tests.redis_server import ALWAYS, RedisServer, needs_redis
from tests.system.configs import SMALL_TOML

pytestmark = [needs_redis, pytest.mark.timeout(300)]
_HANG_S = 180.0
ENVIRONMENT = """
from forebay.envs.protocol import Message, Observation, Outcome


class Echo:
    async def reset(self, task):
        return Observation((Message("user", "a"),))

    async def step(self, action):
        return Outcome(reward=float(len(action.text)), terminated=True)

    async def close(self):
        pass

    @staticmethod
    def generate_tasks(num_tasks, seed):
        return ({"task_id": f"t{i}", "payload": {}} for i in range(num_tasks))
"""


def test_a_run_survives_the_death_of_its_server_and_tells_it_in_its_accounts(tmp_path: Path) -> None:
    (tmp_path / "echo_environment.py").write_text(ENVIRONMENT)
    with RedisServer(tmp_path / "redis", *ALWAYS, "requirepass secret") as server:
        (tmp_path / "run.toml").write_text(
            f"""
{SMALL_TOML}
max_turn_tokens = 4

[store]
engine = "redis"
url = "{server.url}"
password_env = "STORE_PASSWORD"

[environment.mine]
entrypoint = "echo_environment:Echo"
num_tasks = 20

[learner]
steps = 8
checkpoint_every = 4
"""
        )
        process = _forebay(tmp_path, "train", "run.toml")
        run = tmp_path / "runs" / "run"
        _wait_for_steps(process, run / "metrics.jsonl", 2)
        server.restart()
        _, err = process.communicate(timeout=_HANG_S)
        assert process.returncode == 0, err
        summary = read_summary(run / "summary.json", RunSummary)
        assert (summary.steps, summary.lost, summary.repeated) == (8, 0, 0)
        shown = _forebay(tmp_path, "store", "stats", str(run), "--json")
        out, err = shown.communicate(timeout=_HANG_S)
        assert shown.returncode == 0, err
        stats = json.loads(out)
        assert stats["published"] == [0, 8]
        assert stats["counters"]["trajectories.recorded"] == 8 * 2 * 2
        assert stats["lost"] == 0
        without = _forebay(tmp_path, "store", "stats", str(run), password="")
        _, err = without.communicate(timeout=_HANG_S)
        assert without.returncode == 2
        assert "no environment variable STORE_PASSWORD" in err


def _forebay(directory: Path, *arguments: str, password: str = "secret") -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        cwd=directory,
        env=inherited | {"STORE_PASSWORD": password},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _wait_for_steps(process: subprocess.Popen[str], metrics: Path, num_lines: int) -> None:
    deadline_s = time.monotonic() + _HANG_S
    while not metrics.exists() or len(metrics.read_text().splitlines()) < num_lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
