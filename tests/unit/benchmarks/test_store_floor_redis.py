"""What a trajectory costs in a redis store, the server and the client, beside a bare client's `SET`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.store_floor_redis import conclude, measure
from tests.redis_server import needs_redis


def test_what_the_server_and_the_client_spend_is_compared() -> None:
    verbs = ("dispatch", "claim", "put", "drain")
    each = {"server": 5.0, "scripts": 3.0, "client": 2.0}
    found = conclude(dict.fromkeys(verbs, each) | {"bare": {"server": 9.0, "scripts": 0.0, "client": 5.0}})
    assert (found["store_us"], found["bare_us"], found["cpu_ratio"]) == (28.0, 14.0, 0.5)


@needs_redis
def test_every_phase_of_a_round_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    found = measure(tmp_path, rounds=1)
    assert set(found["phases_us"]) == {"dispatch", "claim", "put", "drain", "bare"}
    assert found["phases_us"]["put"]["scripts"] > 0.0
    assert found["phases_us"]["bare"]["scripts"] == 0.0
    assert list(tmp_path.iterdir()) == []
