from __future__ import annotations

import json
import tomllib
from pathlib import Path

from forebay.batching.packing import Bucket, plan_packing
from forebay.cli.ladder import fill_of
from forebay.cli.runs import join_run, own_run
from forebay.config import load_config
from tests.unit.cli.store_run import WORD, make_run
from tests.unit.cli.support import forebay

SHAPE = (
    *("batching.max_length=64", "batching.oversize=truncate", "batching.groups=2"),
    *("batching.rows=1", "batching.min_row_length=2"),
)


def test_shapes_are_a_setting_that_loads_and_fits_what_is_stored(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, *SHAPE)
    code, text = forebay("config", "ladder", str(run), "--max-programs", "3")
    assert code == 0
    shapes = tomllib.loads(text)["batching"]["buckets"]
    assert shapes[0] == [1, 64] and len(shapes) <= 3
    pasted = tmp_path / "next.toml"
    pasted.write_text(text + "max_length = 64\noversize = 'truncate'\n")
    assert load_config(pasted).batching.buckets == tuple(map(tuple, shapes))


def test_fill_of_the_shapes_is_told_beside_that_of_the_run(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, *SHAPE, "batching.max_programs=1")
    told = json.loads(forebay("config", "ladder", str(run), "--max-programs", "8", "--json").text)
    # Two groups of two members, each two words long, in the one row of 64 that the run has.
    tokens = 2 * 2 * 2 * len(WORD)
    assert told["fill_now"] == tokens / 64
    assert (
        told["fill"]
        == tokens / plan_packing([2 * len(WORD)] * 4, [Bucket(*shape) for shape in told["buckets"]]).num_slots
    )
    assert told["fill"] > told["fill_now"] and told["shapes_now"] == 1


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    with own_run(load_config(None, [f"run.directory={tmp_path}", "run.name=x"]))[0]:
        pass
    join_run(tmp_path / "x").open_store().close()
    code, text = forebay("config", "ladder", str(tmp_path / "x"))
    assert code == 2 and "no trajectory to measure" in text


def test_each_batch_counts_alike() -> None:
    assert fill_of([[4], [8, 8]], (Bucket(1, 8),)) == (0.5 + 1.0) / 2
