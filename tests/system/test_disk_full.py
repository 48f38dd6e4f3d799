"""C60 and its kind: the disk fills up under the store, its server and the weights; nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.clock import SystemClock
from forebay.errors import StoreError, WeightsError
from forebay.store import Durability, Store, StoreSettings, count_lost, open_store
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from tests.redis_server import ALWAYS, EVERYSEC, RedisServer, needs_redis
from tests.system.conftest import MakeDisk
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

NUM_GROUPS = 400
CLOCK = SystemClock()


@pytest.fixture
def small_disk(make_disk: MakeDisk) -> Path:
    return make_disk(6)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 14, 1 << 10, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue


def put_until_full(store: Store, slots: list[Any]) -> int:
    """Put until a put is refused; return how many were acknowledged."""
    for number, slot in enumerate(slots):
        try:
            receipt = store.put(make_trajectory(slot, num_tokens=4000), slot)
        except StoreError as error:
            assert re.search(r"is full|is away|cannot write|Free space", str(error)), error
            return number
        assert receipt == "accepted"
    return len(slots)


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("side_file_bytes", [1 << 20, 0], ids=["inside", "side-files"])
def test_c60_every_verb_on_a_full_disk_works_or_says_so_and_can_be_made_again(
    small_disk: Path, durability: Durability, side_file_bytes: int
) -> None:
    settings = StoreSettings(
        path=small_disk / "store", durability=durability, side_file_bytes=side_file_bytes
    )
    store = open_store(settings, RUN, CLOCK)
    store.dispatch([make_spec(i, group_size=1) for i in range(NUM_GROUPS)], incarnation=0)
    slots = list(store.claim(NUM_GROUPS - 3, ttl_s=1e6, actor="actor", version=FIRST))
    for slot in slots[:20]:
        store.put(make_trajectory(slot, num_tokens=4000), slot)
    held, _ = store.take(incarnation=0, choose=oldest_first(8), timeout_s=0.0)
    names = [group.spec.group_id for group in held]
    fill(small_disk / "ballast")
    acknowledged = 20 + put_until_full(store, slots[20:])
    assert acknowledged < len(slots)
    verbs: dict[str, Callable[[], Any]] = {
        "record": lambda: store.record(make_entry(1, names[:6]), incarnation=0),
        "publish": lambda: store.publish(PolicyVersion(0, 1), incarnation=0),
        "release": lambda: store.release(names[6], incarnation=0),
        "reject": lambda: store.reject(names[7], incarnation=0, reason="unlucky"),
        "heartbeat": lambda: store.heartbeat(slots[acknowledged:], ttl_s=1e6),
        "fail": lambda: store.fail(slots[-1], reason="flaky"),
        "release_slot": lambda: store.release_slot(slots[-2]),
        "claim": lambda: store.claim(1, ttl_s=1e6, actor="other", version=FIRST),
        "dispatch": lambda: store.dispatch(
            [make_spec(NUM_GROUPS + i, group_size=1) for i in range(100)], incarnation=0
        ),
    }
    refused = []
    for verb, call in verbs.items():
        try:
            call()
        except StoreError as error:
            assert re.search(r"is full, or fails|is full", str(error)), error
            assert "nothing was lost" in str(error).lower()
            refused.append(verb)
    assert store.audit() == ()
    assert len(store.read_group(names[0]).trajectories) == 1
    (small_disk / "ballast").unlink()
    for verb in refused:
        verbs[verb]()
    stats = store.stats()
    assert (stats.published, stats.next_serial) == (PolicyVersion(0, 1), NUM_GROUPS + 100)
    assert (stats.counters["recorded"], stats.counters["trajectories.rejected.unlucky"]) == (6, 1)
    store.commit(1, incarnation=0)
    assert put_until_full(store, slots[acknowledged : acknowledged + 20]) == 20
    store.close()
    store = open_store(settings, RUN, CLOCK)
    assert store.audit() == ()
    assert store.stats().counters["trajectories.accepted"] == acknowledged + 20
    assert count_lost(store.stats()) == 0
    store.close()


@needs_redis
@pytest.mark.parametrize("level", ["always", "everysec"])
def test_c60_a_server_whose_disk_is_full_loses_nothing_that_it_acknowledged(
    small_disk: Path, level: str
) -> None:
    """Under `always` it ends itself, and is started again; under `everysec` it refuses until it can write."""
    options, durability = {"always": (ALWAYS, "fsync"), "everysec": (EVERYSEC, "os")}[level]
    with RedisServer(small_disk / "redis", *options) as server:
        settings = StoreSettings(engine="redis", url=server.url, durability=durability, deadline_s=1.0)
        store = open_store(settings, RUN, CLOCK)
        store.dispatch([make_spec(i, group_size=1) for i in range(NUM_GROUPS)], incarnation=0)
        slots = list(store.claim(NUM_GROUPS, ttl_s=1e6, actor="actor", version=FIRST))
        fill_all_but(small_disk / "ballast", 1 << 20)
        acknowledged = put_until_full(store, slots)
        assert 5 < acknowledged < len(slots)
        (small_disk / "ballast").unlink()
        if level == "always":
            server.restart()  # it has ended already
        wait_until_it_writes(store)
        stats = store.stats()
        # What was refused may have been stored before the server could say so: never less, and never twice.
        assert acknowledged <= stats.counters["trajectories.accepted"] <= acknowledged + 1
        receipts = [store.put(make_trajectory(slot, num_tokens=4000), slot) for slot in slots[:acknowledged]]
        assert receipts == ["duplicate"] * acknowledged
        again = slots[acknowledged]
        assert store.put(make_trajectory(again, num_tokens=4000), again) in ("accepted", "duplicate")
        server.stop()
        server.start()
        assert store.stats().counters["trajectories.accepted"] == acknowledged + 1
        assert store.audit() == ()
        assert count_lost(store.stats()) == 0
        store.close()


def wait_until_it_writes(store: Store) -> None:
    """Wait until a server has noticed that there is space."""
    deadline_s = CLOCK.monotonic_s() + 60.0
    while True:
        try:
            store.rewind(0)
        except StoreError:
            assert CLOCK.monotonic_s() < deadline_s
            CLOCK.sleep(0.1)
        else:
            return


def fill_all_but(path: Path, num_bytes: int) -> None:
    """Fill the disk, but for some bytes."""
    fill(path)
    with path.open("r+b") as file:
        file.truncate(max(0, path.stat().st_size - num_bytes))


def test_c60_a_disk_that_is_full_while_weights_are_published_keeps_the_older_version(
    small_disk: Path,
) -> None:
    publisher = WeightPublisher(small_disk / "weights", run_id=RUN, settings=WeightSettings(keep_versions=2))
    tensors = {"w": np.arange(200_000, dtype=np.float32)}
    publisher.publish(PolicyVersion(0, 1), tensors)
    fill(small_disk / "ballast")
    with pytest.raises(WeightsError, match=r"cannot publish .*/v-0-2: No space left .* Free disk space"):
        publisher.publish(PolicyVersion(0, 2), {"w": 2 * tensors["w"]})
    reader = WeightReader(small_disk / "weights")
    version, loaded = reader.load()
    assert version == PolicyVersion(0, 1)
    np.testing.assert_array_equal(loaded["w"], tensors["w"])
    assert not [entry for entry in (small_disk / "weights").iterdir() if entry.name.startswith(".")]
    (small_disk / "ballast").unlink()
    publisher.publish(PolicyVersion(0, 2), {"w": 2 * tensors["w"]})
    assert reader.load()[0] == PolicyVersion(0, 2)
