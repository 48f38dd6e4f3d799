from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import lmdb
import numpy as np
import pytest

from forebay.cli.runs import Run, join_run
from forebay.store import open_store
from forebay.store.row_files import read_rows
from forebay.store.rows import from_row
from forebay.wire import encode
from tests.unit.cli.store_run import WORD, make_run
from tests.unit.cli.support import forebay
from tests.unit.store.builders import FIRST, make_spec, make_trajectory


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Run]:
    return make_run(tmp_path)


def lines_of(*arguments: str) -> list[dict]:
    code, text = forebay("store", *arguments)
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


def test_ls_lists_every_group_in_order_with_its_state(made: tuple[Path, Run]) -> None:
    path = str(made[0])
    code, text = forebay("store", "ls", path)
    rows = [line.split() for line in text.splitlines()]
    assert code == 0 and rows[0][:3] == ["group", "state", "environment"]
    states = {row[0]: row[1] for row in rows[1:]}
    assert states == {
        "g0": "recorded", "g1": "taken", "g2": "settled", "g3": "open", "g4": "open", "g5": "open"
    }  # fmt: skip
    by_name = {row[0]: row for row in rows[1:]}
    assert by_name["g0"][3:8] == ["2/2", "0", "0", "0", "1"]
    assert by_name["g3"][3:8] == ["1/2", "0", "0", "0", "-"], "its other member waits for another attempt"
    assert by_name["g4"][3:8] == ["0/2", "1", "0", "0", "-"]
    assert by_name["g5"][2:8] == ["sums", "0/2", "0", "0", "-", "-"]


def test_ls_filters(made: tuple[Path, Run]) -> None:
    path = str(made[0])

    def named(*options: str) -> list[str]:
        return [line["group_id"] for line in lines_of("ls", path, "--json", *options)]

    assert named() == ["g0", "g1", "g2", "g3", "g4", "g5"]
    assert named("--state", "open") == ["g3", "g4", "g5"]
    assert named("--environment", "sums") == ["g5"]
    assert named("--step", "1") == ["g0"] and named("--step", "2") == []
    assert named("--version", "0", "--limit", "2") == ["g0", "g1"]
    assert named("--version", "1") == []
    code, text = forebay("store", "ls", path, "--state", "lost")
    assert code == 2 and "no such state" in text and "settled" in text
    [line] = lines_of("ls", path, "--json", "--step", "1")
    assert line["step"] == 1 and line["members"][0]["actor"] == "actor-7"


def test_ls_streams_many_groups_and_reads_no_payload(
    made: tuple[Path, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = made
    store = run.open_store()
    store.dispatch([make_spec(i, group_id=f"h{i:06d}") for i in range(6, 3000)], incarnation=0)
    store.close()

    def refuse(*_: object) -> None:
        raise AssertionError("no payload is needed")

    monkeypatch.setattr("forebay.store.ledger.Ledger.read_payload", refuse)
    assert len(lines_of("ls", str(path), "--json")) == 3000
    assert len(lines_of("ls", str(path), "--json", "--limit", "700")) == 700


def test_show_tells_all_about_a_group(made: tuple[Path, Run]) -> None:
    code, text = forebay("store", "show", str(made[0]), "g3")
    assert code == 0
    assert "g3, open, of environment calculator" in text and '{"question":"3 + 1"}' in text
    assert "member 0: arrived, g3.0.0 of" in text and "from actor-7" in text
    assert "member 1: free, 1 attempts failed" in text
    assert "trained       not yet" in text and "lease" not in text
    held = forebay("store", "show", str(made[0]), "g4").text
    assert "member 0: leased, held by actor-7, lease ends in" in held


def test_show_is_a_conversation_token_by_token(made: tuple[Path, Run]) -> None:
    code, text = forebay("store", "show", str(made[0]), "g0.1.0")
    assert code == 0
    assert f"told: {WORD}" in text and f"policy: {WORD}" in text
    assert "1 -0.50 v0  2 -0.50 v0" in text, "each token with its logprob and version"
    assert "sampled tokens: 5 by version 0; 5 fresh" in text
    assert "g0.1.0: reward 1; terminated after 1 turns" in text and "g0.0.0: reward" not in text
    assert "by the batch that made version 1" in text
    tree = json.loads(forebay("store", "show", str(made[0]), "g0.1.0", "--json").text)
    [shown] = tree["trajectories"]
    assert shown["trajectory_id"] == "g0.1.0" and shown["step"] == tree["group"]["step"] == 1
    said = shown["messages"][0][1]["tokens"]
    assert "".join(token["text"] for token in said) == WORD and {t["reason"] for t in said} == {"fresh"}


def test_show_refuses_what_is_not_there(made: tuple[Path, Run]) -> None:
    code, text = forebay("store", "show", str(made[0]), "g99")
    assert code == 2 and "no group and no trajectory g99" in text and "store ls" in text
    assert forebay("store", "show", str(made[0]), "../x").code == 2


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_is_exported_makes_the_same_trajectories(
    made: tuple[Path, Run], tmp_path: Path, suffix: str
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path, run = made
    file = tmp_path / f"out.{suffix}"
    code, text = forebay("store", "export", str(path), "--to", str(file))
    assert (code, text) == (0, f"7 trajectories in {file}\n")
    rows = list(read_rows(file))
    assert [row["trajectory_id"] for row in rows][:3] == ["g0.0.0", "g0.1.0", "g1.0.0"]
    assert {row["trajectory_id"]: row["state"] for row in rows}["g3.0.0"] == "open"
    assert [row["step"] for row in rows] == [1, 1, None, None, None, None, None]
    assert json.loads(rows[2]["task_payload"]) == {"question": "1 + 1"}
    with run.view_store() as view:
        stored = [t for name in ("g0", "g1", "g2", "g3") for t in view.read_group(name).trajectories]
    assert [encode(from_row(row)) for row in rows] == [encode(trajectory) for trajectory in stored]
    assert sorted(os.listdir(tmp_path)) == sorted(["x", file.name]), "nothing is left beside it"


def test_export_filters_and_never_overwrites_unasked(made: tuple[Path, Run], tmp_path: Path) -> None:
    path, file = str(made[0]), tmp_path / "out.jsonl"
    file.write_text("mine")
    code, text = forebay("store", "export", path, "--to", str(file))
    assert code == 2 and "exists already" in text and file.read_text() == "mine"
    told = lines_of("export", path, "--to", str(file), "--force", "--state", "recorded", "--json")
    assert told == [{"file": str(file), "trajectories": 2, "skipped": [], "schema_version": 1}]
    assert [row["group_id"] for row in read_rows(file)] == ["g0", "g0"]
    lines_of("export", path, "--to", str(file), "--force", "--environment", "sums", "--json")
    assert file.read_bytes() == b""
    code, text = forebay("store", "export", path, "--to", str(tmp_path / "out.csv"))
    assert code == 2 and ".jsonl or .parquet" in text
    assert forebay("store", "export", path, "--to", str(tmp_path / "no" / "o.jsonl")).code == 2


def damage(run: Run, key: bytes) -> None:
    """Flip a bit in the middle of a stored frame."""
    path, map_bytes = str(run.store_settings.path), run.store_settings.map_bytes
    with lmdb.open(path, map_size=map_bytes) as env, env.begin(write=True) as txn:
        frame = bytearray(txn.get(key))
        frame[len(frame) // 2] ^= 1
        txn.put(key, bytes(frame))


def test_verify_reads_every_frame_and_names_the_corrupt_ones(made: tuple[Path, Run], tmp_path: Path) -> None:
    path, run = made
    code, text = forebay("store", "verify", str(path))
    assert code == 0 and "7 trajectories of 6 groups" in text and "0 trajectories lost" in text
    damage(run, b"p/g2/\0\0\0\1")
    code, text = forebay("store", "verify", str(path))
    assert code == 4 and "corrupt: trajectory g2.1.0, member 1 of group g2: " in text
    assert "read back: 6 trajectories of 6 groups" in text
    code, text = forebay("store", "verify", str(path), "--json")
    tree = json.loads(text)
    assert code == 4 and not tree["sound"] and tree["lost"] == 0 and tree["problems"] == []
    [found] = tree["corrupt"]
    assert (found["group_id"], found["member"], found["reason"]) == ("g2", 1, "bad_checksum")
    assert "cannot be read back" in forebay("store", "show", str(path), "g2").text
    told = lines_of("export", str(path), "--to", str(tmp_path / "o.jsonl"), "--json")[0]
    assert told["trajectories"] == 6 and "member 1 of g2" in told["skipped"][0]


def test_a_member_in_quarantine_is_shown_with_why(made: tuple[Path, Run]) -> None:
    path, run = made
    damage(run, b"p/g2/\0\0\0\0")
    store = run.open_store()
    store.take(incarnation=0, choose=lambda groups: _take_g2(groups), timeout_s=0.0)
    store.close()
    code, text = forebay("store", "verify", str(path))
    assert code == 0 and "1 frames lie in quarantine" in text
    shown = forebay("store", "show", str(path), "g2").text
    assert "member 0: failed" in shown and "in quarantine: " in shown and "checksum" in shown


def _take_g2(groups):
    from forebay.staleness import Choice

    return Choice(take=tuple(g.group_id for g in groups if g.group_id == "g2" and g.settled))


def work(path: Path, stop, count) -> None:
    """Put and claim, over and over, in a process of its own."""
    run = join_run(path)
    store = open_store(run.store_settings, run.run_id)
    serial = store.stats().next_serial
    while not stop.is_set():
        store.dispatch([make_spec(serial, group_size=1)], incarnation=0)
        for slot in store.claim(1, ttl_s=1e6, actor="w", version=FIRST):
            store.put(make_trajectory(slot, run_id=run.run_id), slot)
        serial += 1
        count.value += 1
    store.close()


def test_a_live_store_is_looked_at_without_disturbing_it(made: tuple[Path, Run], tmp_path: Path) -> None:
    path, run = made
    context = multiprocessing.get_context("spawn")
    stop, count = context.Event(), context.Value("i", 0)
    worker = context.Process(target=work, args=(path, stop, count))
    worker.start()
    try:
        looks = 0
        while looks < 1 or count.value < 20:
            for command in (
                ["stats"], ["ls"], ["show", "g0"], ["verify"],
                ["export", "--to", str(tmp_path / "o.jsonl"), "--force"],
            ):  # fmt: skip
                name, *rest = command
                code, text = forebay("store", name, str(path), *rest)
                assert code == 0, text
            looks += 1
            assert worker.is_alive()
    finally:
        stop.set()
        worker.join()
    assert worker.exitcode == 0
    store = run.open_store()
    counters = store.stats().counters
    # What the worker did, and nothing else: no look has settled, swept, expired or counted anything.
    assert counters["dispatched"] == 6 + count.value and counters["accepted"] == 7 + counters["claimed"] - 9
    assert set(counters) == {
        "accepted", "claimed", "dispatched", "errors.environment", "published", "recorded", "retried",
        "settled", "trajectories.accepted", "trajectories.recorded",
    }  # fmt: skip
    assert store.audit() == ()
    store.close()


@pytest.mark.parametrize(
    "command", [["stats"], ["ls"], ["show", "g3"], ["verify"], ["export", "--to", "OUT"]]
)
def test_no_byte_changes(made: tuple[Path, Run], tmp_path: Path, command: list[str]) -> None:
    path, run = made
    data = run.store_settings.path / "data.mdb"
    before, files = data.read_bytes(), sorted(p for p in path.rglob("*") if p.name != "lock.mdb")
    name, *rest = [str(tmp_path / "o.jsonl") if word == "OUT" else word for word in command]
    assert forebay("store", name, str(path), *rest).code == 0
    assert data.read_bytes() == before
    assert sorted(p for p in path.rglob("*") if p.name != "lock.mdb") == files


def test_float32_survives_a_row_exactly() -> None:
    values = np.array([-0.1, -1e-30, -88.72284, 0.0], np.float32)
    assert np.array(json.loads(json.dumps(values.tolist())), np.float32).tobytes() == values.tobytes()
