from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.runs import join_run
from forebay.cli.store_bench import _demand, bench, make_plan
from forebay.errors import ConfigError
from tests.unit.cli.test_store_compact import TOKENS, make_run


def test_quick_measures_one_size_briefly() -> None:
    whole, quick = make_plan(Path()), make_plan(Path(), quick=True)
    assert whole.sizes == (53_248, 262_144, 1_048_576) and whole.resident == (1_000, 100_000)
    assert quick.sizes == (53_248,) and quick.window_s < whole.window_s and quick.quick
    assert quick.engines == ("lmdb_fsync", "lmdb_os", "redis_always", "redis_everysec", "mp_queue")


@pytest.mark.parametrize("sizes", ["", "0", "52,", "1e3", "-1", "300000"])
def test_sizes_are_whole_kib(sizes: str) -> None:
    with pytest.raises(ConfigError, match="sizes are whole KiB, separated by commas"):
        make_plan(Path(), sizes=sizes)


@pytest.mark.parametrize("engines", ["", "lmdb", "lmdb_os,sqlite"])
def test_an_unknown_engine_is_named(engines: str) -> None:
    with pytest.raises(ConfigError, match=r"no such engine .* limit some of lmdb_fsync, lmdb_os"):
        make_plan(Path(), engines=engines)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"demand_per_s": 10.0}, "belong together"),
        ({"demand_bytes": 1000}, "belong together"),
        ({"demand_per_s": 0.0, "demand_bytes": 1000}, "a rate above 0"),
        ({"demand_per_s": float("nan"), "demand_bytes": 1000}, "a rate above 0"),
    ],
)
def test_a_demand_is_a_rate_and_a_size(flags: dict[str, float], message: str) -> None:
    given = {"demand_per_s": None, "demand_bytes": None} | flags
    with pytest.raises(ConfigError, match=message):
        bench(
            None,
            **given,
            directory=Path(),
            engines="lmdb_os",
            sizes="52",
            writers=1,
            in_flight=1,
            seconds=1.0,
        )


def test_a_run_says_its_demand_itself(tmp_path: Path) -> None:
    run = join_run(make_run(tmp_path, "batching.groups=3", "batching.group_size=4", 'store.durability="os"'))
    plan = make_plan(Path())
    with pytest.raises(ConfigError, match=r"does not say how fast .* Give --demand-per-s"):
        _demand(run, plan, None, None)
    run.layout.summary.write_text('{"steps_per_s": 0.5}')
    demand = _demand(run, plan, None, None)
    assert demand is not None and (demand.engine, demand.per_s) == ("lmdb_os", 6.0)
    assert 6 * TOKENS < demand.num_bytes < 6 * TOKENS + 2_000
    given = _demand(run, plan, 10.0, 500)
    assert given == ("lmdb_os", 10.0, 500)
    with pytest.raises(ConfigError, match=r"engine is not measured \(got lmdb_os"):
        _demand(run, make_plan(Path(), engines="lmdb_fsync"), 10.0, 500)
