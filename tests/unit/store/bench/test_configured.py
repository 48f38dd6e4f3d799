"""The configured store, on a real disk and a real server; what is measured is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError
from forebay.store.bench.configured import StoreSamples, Use, measure_store
from forebay.store.redis.opening import forget_redis, open_redis
from forebay.store.settings import StoreSettings
from tests.redis_server import EVERYSEC, empty_server, needs_redis

USE = Use(payload_bytes=900, batch_groups=3, group_size=2, writers=1)


@pytest.mark.parametrize("engine", ["lmdb", pytest.param("redis", marks=needs_redis)])
def test_puts_and_takes_are_measured_and_nothing_is_left(engine: str, tmp_path: Path) -> None:
    url = empty_server(*EVERYSEC).url if engine == "redis" else None
    path = tmp_path / "run" / "store" if engine == "lmdb" else None
    settings = StoreSettings(engine=engine, path=path, url=url, durability="os")
    samples, told = StoreSamples(rates=[]), []
    measure_store(settings, USE, 0.6, samples, told.append)
    assert len(samples.rates) == 1 and samples.rates[0] > 0.0
    assert samples.put_s and len(samples.take_s) >= 3
    assert samples.num_alone == 6 * len(samples.take_s) == 6 * len(samples.alone_put_s)
    assert samples.paced_per_s == max(1.0, samples.rates[0] / 4)
    assert told[0] == "store: a batch of 3 x 2 at a time"
    assert list(tmp_path.iterdir()) == []
    if url is not None:
        import redis

        assert redis.Redis.from_url(url).dbsize() == 0


@needs_redis
def test_forgetting_one_run_leaves_the_others() -> None:
    settings = StoreSettings(engine="redis", url=empty_server(*EVERYSEC).url, durability="os")
    for name in ("mine", "mine-too"):
        open_redis(settings, name, SystemClock()).close()
    assert forget_redis(settings, "mine") > 0
    assert forget_redis(settings, "mine") == 0
    assert forget_redis(settings, "mine-too") > 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "an lmdb store needs a directory"),
        (Path("/proc/nowhere/store"), "cannot write to /proc, where"),
    ],
)
def test_a_place_that_cannot_hold_a_store_is_refused(path: Path | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_store(StoreSettings(path=path), USE, 0.1, StoreSamples(rates=[]), lambda _: None)
