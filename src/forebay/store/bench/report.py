"""The whole benchmark: rows measured one after another, their ratios, and what they mean for a demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from forebay.errors import ConfigError
from forebay.store.bench import redis_server
from forebay.store.bench.figures import Figures
from forebay.store.bench.flatness import Flatness, measure_flatness
from forebay.store.bench.layouts import ENGINES, STORES, Layout, measure, names_for
from forebay.store.file_systems import refuse_network_filesystem

_PACED_SHARE: Final = 0.25
_UNPACED_IN_QUICK: Final = ("redis_always", "mp_queue")
# The rate of an engine, over the rate of what it is built on.
_BASELINES: Final = {
    "lmdb_fsync_to_bare_lmdb": ("lmdb_fsync", "bare_lmdb_fsync"),
    "lmdb_fsync_to_append_fdatasync": ("lmdb_fsync", "raw_append_fdatasync"),
    "lmdb_os_to_bare_lmdb": ("lmdb_os", "bare_lmdb_os"),
    "redis_everysec_to_bare_redis": ("redis_everysec", "bare_redis_everysec"),
    "redis_always_to_bare_redis": ("redis_always", "bare_redis_always"),
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Args:
        directory: On the disk that the store will lie on.
        engines: Of `ENGINES`.
        sizes: Bytes of a trajectory; the first is the one that ratios are told for.
        writers: Writer processes.
        in_flight: Puts that each makes at once.
        window_s: Seconds that count, for each row.
        warm_s: Seconds before them.
        resident: Trajectories in the store while index operations are timed: few, and many.
        cycles: Trajectories that have gone through when memory and file are looked at.
        quick: Whether to leave out rows that no target is about.
    """

    directory: Path
    engines: tuple[str, ...] = ENGINES
    sizes: tuple[int, ...] = (52 << 10, 256 << 10, 1 << 20)
    writers: int = 4
    in_flight: int = 8
    window_s: float = 4.0
    warm_s: float = 1.0
    resident: tuple[int, int] = (1_000, 100_000)
    cycles: tuple[int, int] = (1_000, 10_000)
    quick: bool = False


class Demand(NamedTuple):
    """What a learner consumes.

    Args:
        engine: The row that is asked about.
        per_s: Trajectories per second.
        num_bytes: Bytes of one.
    """

    engine: str
    per_s: float
    num_bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Args:
        rows: By size in bytes, then by name.
        ratios: Of the first size.
        flatness: None where no lmdb store was measured.
        left_out: Engines that could not be measured, and why.
        plan: What was asked.
    """

    rows: dict[int, dict[str, Figures]]
    ratios: dict[str, float]
    flatness: Flatness | None
    left_out: dict[str, str]
    plan: Plan


def run_bench(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Measure everything.

    Args:
        plan: What.
        tell: Hears what is being measured.

    Raises:
        ConfigError: An engine is not known, or the directory cannot hold a store.
        StoreError: A process of the benchmark failed.
    """
    engines, left_out = _available(plan.engines)
    if not plan.directory.is_dir():
        raise ConfigError(f"no directory {plan.directory}", remedy="Name one on the store's disk.")
    refuse_network_filesystem(plan.directory)
    rows = {size: _measure_size(plan, engines, size, tell) for size in plan.sizes}
    flatness = None
    if any(name.startswith("lmdb") for name in engines):
        tell(f"index operations at {plan.resident[0]:,} and {plan.resident[1]:,} residents, and memory")
        flatness = measure_flatness(plan.directory, plan.resident, plan.cycles)
    ratios = _ratios(rows[plan.sizes[0]], flatness)
    return Report(rows=rows, ratios=ratios, flatness=flatness, left_out=left_out, plan=plan)


def _available(wanted: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown or not wanted:
        raise ConfigError("no such engine", got=", ".join(unknown) or "none", limit=", ".join(ENGINES))
    why = redis_server.missing() if any(name.startswith("redis") for name in wanted) else ""
    left_out = {name: why for name in wanted if why and name.startswith("redis")}
    return tuple(name for name in wanted if name not in left_out), left_out


def _measure_size(
    plan: Plan, engines: Sequence[str], size: int, tell: Callable[[str], None]
) -> dict[str, Figures]:
    layout = Layout(
        directory=plan.directory,
        payload_bytes=size,
        writers=plan.writers,
        in_flight=plan.in_flight,
        warm_s=plan.warm_s,
        window_s=plan.window_s,
    )
    rows = {}
    for name in names_for(engines):
        if plan.quick and name == "bare_redis_always":
            continue
        tell(f"{name}, {size:,} bytes")
        figures = measure(name, layout)
        if name in STORES:
            drained = measure(name, layout, drains=True)
            figures = msgspec.structs.replace(figures, drained_puts_per_s=drained.puts_per_s)
        if name in ENGINES and not (plan.quick and name in _UNPACED_IN_QUICK):
            paced = measure(name, layout, max(1.0, _PACED_SHARE * figures.puts_per_s))
            figures = msgspec.structs.replace(figures, paced=paced)
        rows[name] = figures
    return rows


def _ratios(rows: Mapping[str, Figures], flatness: Flatness | None) -> dict[str, float]:
    found = {}
    for name, (engine, baseline) in _BASELINES.items():
        if engine in rows and baseline in rows and rows[baseline].puts_per_s:
            rate = rows[engine].drained_puts_per_s or rows[engine].puts_per_s
            found[name] = rate / rows[baseline].puts_per_s
    for engine in STORES:
        found |= _own_ratios(engine, rows)
    if flatness is not None:
        found["index_100k_to_1k"] = flatness.index_ratio
        found["memory_growth"] = flatness.rss_bytes[1] / flatness.rss_bytes[0]
        found["file_growth"] = flatness.file_bytes[1] / flatness.file_bytes[0]
    return found


def _own_ratios(engine: str, rows: Mapping[str, Figures]) -> dict[str, float]:
    if engine not in rows:
        return {}
    figures = rows[engine]
    found = {f"{engine}_slowest_writer": figures.slowest_writer}
    paced = figures.paced.put_ms if figures.paced is not None else None
    fsync = rows["raw_append_fdatasync"].put_ms.p50
    if paced is not None and paced.p50 is not None and paced.p99 is not None and fsync is not None:
        # At most 1 if a paced put's p99 stays within 5 medians and one fsync.
        found[f"{engine}_paced_p99_to_limit"] = paced.p99 / (5.0 * paced.p50 + fsync)
    return found


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as one tree of JSON types; the rows of the first size stand at its top."""
    rows = msgspec.to_builtins({str(size): rows for size, rows in report.rows.items()}, str_keys=True)
    return {
        **rows[str(report.plan.sizes[0])],
        "ratios": report.ratios,
        "flatness": msgspec.to_builtins(report.flatness),
        "left_out": report.left_out,
        "by_bytes": rows,
    }


def judge(report: Report, demand: Demand | None) -> str:
    """Return the one sentence: whether the store carries the demand, with what headroom.

    A size that was not measured is judged by the next larger one; beyond the largest, by its bytes per
    second.

    Raises:
        ConfigError: The engine that is asked about was not measured.
    """
    size = report.plan.sizes[0]
    if demand is None:
        stores = [name for name in STORES if name in report.rows[size]]
        if not stores:
            return "No store was measured."
        rate = report.rows[size][stores[0]].puts_per_s
        return f"{stores[0]} carries up to {rate:,.0f} trajectories/s of {size:,} bytes; no demand was given."
    larger = [known for known in sorted(report.rows) if known >= demand.num_bytes]
    size = larger[0] if larger else max(report.rows)
    if demand.engine not in report.rows[size]:
        raise ConfigError(
            "the engine that the demand is on was not measured",
            got=demand.engine,
            limit=", ".join(report.rows[size]),
        )
    rate = report.rows[size][demand.engine].puts_per_s * (1.0 if larger else size / demand.num_bytes)
    headroom = rate / demand.per_s
    verb = "carries" if headroom >= 1.0 else "does not carry"
    return (
        f"{demand.engine} {verb} the learner's {demand.per_s:,.1f} trajectories/s of {demand.num_bytes:,} "
        f"bytes ({demand.per_s * demand.num_bytes / 1e6:,.1f} MB/s): it does {rate:,.0f}/s here, "
        f"{headroom:.1f} times that."
    )
