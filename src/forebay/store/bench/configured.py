"""A store as it is configured: how many results it takes in, how long a put and the take of a batch last."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from forebay.errors import ConfigError
from forebay.store.bench.layouts import Layout, sample_store
from forebay.store.bench.processes import Sample
from forebay.store.bench.workload import (
    ORIGIN,
    make_branch,
    make_entry,
    make_specs,
    make_trajectory,
    oldest_settled,
)
from forebay.store.file_systems import existing, refuse_network_filesystem
from forebay.store.opening import open_store
from forebay.store.putting import receipt_of
from forebay.store.redis.opening import forget_redis
from forebay.store.settings import StoreSettings

# So often at full speed, for an interval; once if there is less time than this.
_REPEATS: Final = 3
_SHORT_S: Final = 4.0
_WARM_SHARE: Final = 0.25
_PACED_SHARE: Final = 0.25
_LEASE_S: Final = 600.0
_PUT_AT_ONCE: Final = 64
_LEAST_TAKES: Final = 3
_ROOMY_BYTES: Final = 1 << 40


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How a run uses its store.

    Args:
        payload_bytes: Size of a trajectory.
        batch_groups: Groups that the learner takes at once.
        group_size: Trajectories of a group.
        writers: Actor processes.
        in_flight: Puts that each makes at once.
    """

    payload_bytes: int
    batch_groups: int
    group_size: int
    writers: int
    in_flight: int = 8


class StoreSamples(msgspec.Struct, kw_only=True):
    """What has been measured so far, seconds.

    Attributes:
        rates: Results per second at full load, of each repetition.
        paced_per_s: The rate at which `put_s` was measured.
        put_s: From when a put was due until it was durable.
        take_s: From the call until a whole batch was decoded.
        alone_put_s: Of a few puts together with nobody else at work, each time.
        num_alone: How many results those were.
    """

    rates: list[float]
    paced_per_s: float = 0.0
    put_s: list[float] = msgspec.field(default_factory=list)
    take_s: list[float] = msgspec.field(default_factory=list)
    alone_put_s: list[float] = msgspec.field(default_factory=list)
    num_alone: int = 0


def measure_store(
    settings: StoreSettings, use: Use, limit_s: float, samples: StoreSamples, tell: Callable[[str], None]
) -> None:
    """Measure beside where a run's store lies; nothing of the run is touched, and what is written is removed.

    Args:
        settings: The run's; the path of an lmdb store need not exist.
        use: How it is used.
        limit_s: Time to measure; starting the processes comes on top.
        samples: Where everything is noted at once, so that it stays if this is interrupted.
        tell: Hears what is being measured.

    Raises:
        ConfigError: The settings cannot work, or the directory cannot be written or is no local disk.
        StoreError: The server is away, or a process failed.
    """
    repeats = _REPEATS if limit_s >= _SHORT_S else 1
    window_s = limit_s / (repeats + 2)
    layout = Layout(
        directory=Path(),
        payload_bytes=use.payload_bytes,
        writers=use.writers,
        in_flight=use.in_flight,
        warm_s=_WARM_SHARE * window_s,
        window_s=window_s,
    )
    with _scratch_stores(settings) as fresh:
        tell(f"store: a batch of {use.batch_groups} x {use.group_size} at a time")
        _take_batches(*fresh(), use, window_s, samples)
        for number in range(repeats):
            tell(f"store: {use.writers} writers at full speed, {number + 1} of {repeats}")
            writers = _sampled(*fresh(), layout)
            samples.rates.append(sum(one.done for one in writers) / window_s)
        samples.paced_per_s = max(1.0, _PACED_SHARE * sum(samples.rates) / len(samples.rates))
        tell(f"store: at {samples.paced_per_s:.3g} puts/s")
        paced = _sampled(*fresh(), layout, samples.paced_per_s)
        samples.put_s += np.concatenate([one.latencies_s for one in paced]).tolist()


def _sampled(settings: StoreSettings, run_id: str, layout: Layout, puts_per_s: float = 0.0) -> list[Sample]:
    return sample_store(layout, settings.model_dump(mode="json"), run_id, puts_per_s)


def _take_batches(
    settings: StoreSettings, run_id: str, use: Use, limit_s: float, samples: StoreSamples
) -> None:
    store = open_store(settings, run_id)
    try:
        incarnation = store.rewind(0).incarnation
        choose, branch = oldest_settled(use.batch_groups), make_branch(use.payload_bytes)
        give_up_s, step = time.monotonic() + limit_s, 0
        while step < _LEAST_TAKES or time.monotonic() < give_up_s:
            first = step * use.batch_groups
            specs = make_specs(first, first + use.batch_groups, use.payload_bytes, use.group_size)
            store.dispatch(specs, incarnation=incarnation)
            while slots := store.claim(_PUT_AT_ONCE, ttl_s=_LEASE_S, actor="audit", version=ORIGIN):
                results = [(make_trajectory(branch, slot), slot) for slot in slots]
                began_s = time.monotonic()
                for outcome in store.put_many(results):
                    receipt_of(outcome)
                samples.alone_put_s.append(time.monotonic() - began_s)
                samples.num_alone += len(slots)
            began_s = time.monotonic()
            groups, _ = store.take(incarnation=incarnation, choose=choose, timeout_s=_LEASE_S)
            samples.take_s.append(time.monotonic() - began_s)
            step += 1
            store.record(make_entry(step, [g.spec.group_id for g in groups]), incarnation=incarnation)
            store.commit(step, incarnation=incarnation)
    finally:
        store.close()


@contextmanager
def _scratch_stores(settings: StoreSettings) -> Iterator[Callable[[], tuple[StoreSettings, str]]]:
    """Yield what gives settings of an empty store at the same place, and the name of its run.

    All of them are removed at the end.
    """
    run_ids: list[str] = []
    roomy: dict[str, Any] = {
        "capacity_groups": 1 << 24,
        "capacity_bytes": _ROOMY_BYTES,
        "retained_capacity_bytes": _ROOMY_BYTES,
    }

    def fresh() -> tuple[StoreSettings, str]:
        run_ids.append(f"audit-{secrets.token_hex(6)}")
        where = {} if scratch is None else {"path": scratch / run_ids[-1]}
        return settings.model_copy(update=roomy | where), run_ids[-1]

    scratch = None if settings.engine == "redis" else _make_directory(settings)
    try:
        yield fresh
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            for run_id in run_ids:
                forget_redis(settings, run_id)


def _make_directory(settings: StoreSettings) -> Path:
    if settings.path is None:
        raise ConfigError("an lmdb store needs a directory", remedy="Set store.path.")
    place = existing(settings.path.parent)
    refuse_network_filesystem(place)
    try:
        return Path(tempfile.mkdtemp(prefix=".forebay-audit-", dir=place))
    except OSError as error:
        raise ConfigError(
            f"cannot write to {place}, where the store would lie: {error.strerror}",
            remedy="Set store.path to a directory that you may write to.",
        ) from None
