"""Frames that a bad disk or a hostile writer changed are refused by name, and the run goes on."""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import DamagedError
from forebay.store import Store, StoreSettings, batches, count_lost, view_store
from forebay.trajectory import PolicyVersion
from forebay.wire import encode
from tests.unit.store.builders import (
    FIRST,
    RUN,
    make_entry,
    make_spec,
    make_trajectory,
    oldest_first,
)
from tests.unit.store.conftest import OpenStore
from tests.unit.store.frames import Frames, frames_of, records_of


class Canary:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("canary"),)


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]


def with_prefix(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    size = struct.calcsize(form)
    return lambda frame: frame[:offset] + struct.pack(form, value) + frame[offset + size :]


# The reason that is counted, and what happened to the frame.
HOSTILE: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("truncated", lambda frame: frame[: len(frame) // 2]),
    ("truncated", lambda frame: frame[:31]),
    ("missing_file", lambda frame: b""),
    ("bad_magic", flip(0)),
    ("bad_checksum", flip(33)),
    ("bad_checksum", flip(-1 % 320)),
    ("bad_version", with_prefix(4, "<H", 9)),
    ("bad_version", with_prefix(6, "<H", 1)),
    ("bad_length", lambda frame: frame + bytes(64)),
    ("bad_length", with_prefix(8, "<I", 1 << 31)),
    ("truncated", with_prefix(16, "<Q", 1 << 62)),
    ("bad_magic", lambda frame: pickle.dumps(Canary()) + frame),
    ("bad_magic", lambda frame: bytes(len(frame))),
)


def fill(store: Store, num_groups: int) -> list[Any]:
    """Dispatch groups of two and put every member."""
    first = store.stats().next_serial
    store.dispatch([make_spec(first + i) for i in range(num_groups)], incarnation=0)
    slots = store.claim(2 * num_groups, ttl_s=60.0, actor="actor", version=FIRST)
    for slot in slots:
        assert store.put(make_trajectory(slot, num_tokens=32), slot) == "accepted"
    return list(slots)


@pytest.fixture
def frames(store: Store, engine_settings: dict[str, Any]) -> Frames:
    return frames_of(store, engine_settings)


def test_c75_hostile_frames_are_refused_by_name_and_the_run_goes_on(
    store: Store, frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(store, len(HOSTILE))
    expected: dict[str, int] = {}
    for serial, (reason, spoil) in enumerate(HOSTILE):
        frames.write(f"g{serial}", 1, spoil(frames.read(f"g{serial}", 1)))
        expected[reason] = expected.get(reason, 0) + 1
    with pytest.raises(DamagedError, match="member 1 of group g3 cannot be read back: not a forebay frame"):
        store.read_group("g3")
    taken, _ = store.take(incarnation=0, choose=oldest_first(len(HOSTILE)), timeout_s=0.0)
    assert [[t.member for t in group.trajectories] for group in taken] == [[0]] * len(HOSTILE)
    store.record(make_entry(1, [group.spec.group_id for group in taken]), incarnation=0)
    store.publish(PolicyVersion(0, 1), incarnation=0)
    store.commit(1, incarnation=0)

    fill(store, 1)
    ((group,), _) = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    assert len(group.trajectories) == 2
    stats = store.stats()
    assert {
        name.removeprefix("corrupt."): count
        for name, count in stats.counters.items()
        if name.startswith("corrupt.")
    } == expected
    assert stats.counters["trajectories.rejected.corrupt"] == len(HOSTILE)
    assert count_lost(stats) == 0
    assert not (tmp_path / "canary").exists()


def test_frames_that_belong_elsewhere_are_refused(store: Store, frames: Frames) -> None:
    """Whole frames, of another run, another group, and the same one twice."""
    slots = fill(store, 3)
    frames.write("g0", 1, encode(make_trajectory(slots[1], run_id="other")))
    frames.write("g1", 0, frames.read("g2", 0))
    frames.write("g2", 1, frames.read("g2", 0))
    taken, _ = store.take(incarnation=0, choose=oldest_first(3), timeout_s=0.0)
    assert [[t.trajectory_id for t in group.trajectories] for group in taken] == [
        ["g0.0.0"],
        ["g1.1.0"],
        ["g2.0.0"],
    ]
    counters = store.stats().counters
    assert (counters["corrupt.foreign"], counters["corrupt.misplaced"]) == (1, 2)


def test_a_group_with_too_few_whole_frames_is_dropped(store: Store, frames: Frames) -> None:
    fill(store, 2)
    for member in (0, 1):
        frames.write("g0", member, b"nonsense" * 8)
    ((group,), _) = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    assert group.spec.group_id == "g1"
    stats = store.stats()
    assert (stats.counters["dropped.corrupt"], stats.counters["corrupt.bad_magic"]) == (1, 2)
    assert count_lost(stats) == 0


def set_aside(engine_settings: dict[str, Any]) -> dict[tuple[str, int], bytes]:
    if engine_settings["engine"] == "memory":
        pytest.skip("nobody else can look into a store in memory")
    with view_store(StoreSettings(**engine_settings), RUN) as view:
        return {(kept.group_id, kept.member): kept.frame for kept in view.set_aside()}


def test_what_is_refused_is_set_aside_as_it_was(
    opened: OpenStore, engine_settings: dict[str, Any], tmp_path: Path
) -> None:
    store = opened()
    frames = frames_of(store, engine_settings)
    fill(store, 2)
    spoiled = frames.read("g0", 1)[:-1]
    frames.write("g0", 1, spoiled)
    frames.remove("g1", 0)
    store.take(incarnation=0, choose=oldest_first(2), timeout_s=0.0)
    store.close()
    assert set_aside(engine_settings) == {("g0", 1): spoiled}
    opened().close()  # opening sweeps what nobody refers to
    assert set_aside(engine_settings) == {("g0", 1): spoiled}


@pytest.mark.parametrize("limit", ["frames", "bytes"])
def test_a_quarantine_is_bounded_and_says_when_it_is_full(
    store: Store, frames: Frames, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    num_bytes = len(encode(make_trajectory(fill(store, 5)[0], num_tokens=32)))
    monkeypatch.setattr(batches, "MAX_QUARANTINED", 3 if limit == "frames" else 64)
    monkeypatch.setattr(batches, "MAX_QUARANTINED_BYTES", 1 << 28 if limit == "frames" else 3 * num_bytes)
    for serial in range(5):
        frames.write(f"g{serial}", 0, b"N" + frames.read(f"g{serial}", 0)[1:])
    store.take(incarnation=0, choose=oldest_first(5), timeout_s=0.0)
    counters = store.stats().counters
    assert (counters["quarantine.kept"], counters["quarantine.full"]) == (3, 2)
    assert counters["corrupt.bad_magic"] == 5


# Every kind of record that is not a frame, and a call that reads it.
READERS: dict[str, Callable[[Store], object]] = {
    "totals": lambda store: store.stats(),
    "group": lambda store: store.read_group("g0"),
    "task": lambda store: store.read_group("g0"),
    "summary": lambda store: store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0),
    "entry": lambda store: store.journal(),
    "batch": lambda store: store.truncate_journal(0, incarnation=0),
}
NUM_FLIPS = 48
GARBAGE = (b"", b"\xc1", pickle.dumps(Canary()), b"\x93\xa1\xff", bytes(400))


def test_a_damaged_record_is_an_error_that_names_it(
    opened: OpenStore, engine_settings: dict[str, Any]
) -> None:
    """Garbage, a missing byte, and flipped bits, the first and the last among them."""
    store = opened()
    fill(store, 2)
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    store.record(make_entry(1, ["g0"]), incarnation=0)
    records = records_of(store, engine_settings)
    for kind in records.kinds:
        whole = records.read(kind)
        rng = random.Random(kind)
        last = 8 * len(whole) - 1
        bits = [0, last, *(rng.randrange(last) for _ in range(NUM_FLIPS))]
        flipped = [whole[: b // 8] + bytes([whole[b // 8] ^ 1 << b % 8]) + whole[b // 8 + 1 :] for b in bits]
        for spoiled in (*GARBAGE, whole[:-1], whole[1:], whole + b"\0", *flipped):
            records.write(kind, spoiled)
            with pytest.raises(DamagedError, match=r"the store's .* is damaged: .*[Rr]estore .* from a copy"):
                READERS[kind](store)
        records.write(kind, whole)
    for kind in records.kinds:
        READERS[kind](store)
    assert store.audit() == ()


@pytest.mark.parametrize("kind", ["totals", "group"])
def test_nothing_is_acknowledged_over_a_damaged_record(
    opened: OpenStore, engine_settings: dict[str, Any], kind: str
) -> None:
    store = opened()
    store.dispatch([make_spec(0)], incarnation=0)
    slot, _ = store.claim(2, ttl_s=60.0, actor="actor", version=FIRST)
    records = records_of(store, engine_settings)
    whole = records.read(kind)
    records.write(kind, flip(len(whole) // 2)(whole))
    for call in (
        lambda: store.put(make_trajectory(slot), slot),
        lambda: store.heartbeat([slot], ttl_s=60.0),
        lambda: store.fail(slot, reason="late"),
        lambda: store.rewind(0),
        store.audit,
    ):
        with pytest.raises(DamagedError, match="is damaged"):
            call()
    records.write(kind, whole)
    assert store.put(make_trajectory(slot), slot) == "accepted"
    assert store.audit() == ()


def test_a_damaged_group_harms_no_other_put_of_the_same_call(
    opened: OpenStore, engine_settings: dict[str, Any]
) -> None:
    store = opened()
    store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
    slots = store.claim(4, ttl_s=60.0, actor="actor", version=FIRST)
    records = records_of(store, engine_settings)
    whole = records.read("group")
    records.write("group", flip(len(whole) // 2)(whole))
    results = [(make_trajectory(slot), slot) for slot in (slots[2], slots[0], slots[1], slots[3])]
    first, *spoiled, last = store.put_many(results)
    assert (first, last) == ("accepted", "accepted")
    assert [type(outcome) for outcome in spoiled] == [DamagedError, DamagedError]
    records.write("group", whole)
    assert store.put_many(results) == ("duplicate", "accepted", "accepted", "duplicate")
    assert store.audit() == ()


def test_records_that_changed_places_are_damaged(opened: OpenStore, engine_settings: dict[str, Any]) -> None:
    """A whole record under another's name, as a disk that confuses two blocks would leave it."""
    store = opened()
    fill(store, 1)
    records = records_of(store, engine_settings)
    records.write("group", records.read("task"))
    with pytest.raises(DamagedError, match="g0"):
        store.read_group("g0")


def test_an_index_that_names_a_group_that_is_not_there_is_damaged(
    opened: OpenStore, engine_settings: dict[str, Any]
) -> None:
    store = opened()
    store.dispatch([make_spec(0)], incarnation=0)
    records_of(store, engine_settings).list_stranger("a9")
    with pytest.raises(DamagedError, match=r"index.* names a group that is not there.*a9"):
        store.claim(1, ttl_s=60.0, actor="actor", version=FIRST)
    assert store.audit() != ()
