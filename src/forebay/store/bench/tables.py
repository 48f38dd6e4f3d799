"""The report for people: a table for each size, the ratios with their targets, one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forebay.store.bench.figures import Figures, Latency
from forebay.store.bench.report import Report

_COLUMNS: Final = (
    *("row", "puts/s", "drained", "put p50", "p99", "p99.9", "put→take p50", "p99", "CPU ms"),
    *("paced put p50", "p99", "p99.9", "samples"),
)
# What each ratio should be: at least, or at most.
_TARGETS: Final = {
    "lmdb_fsync_to_bare_lmdb": "≥ 0.7",
    "lmdb_fsync_to_append_fdatasync": "≥ 0.45",
    "lmdb_os_to_bare_lmdb": "≥ 0.5",
    "redis_everysec_to_bare_redis": "≥ 0.7",
    "lmdb_fsync_paced_p99_to_limit": "≤ 1",
    "lmdb_fsync_slowest_writer": "≥ 0.5",
    "lmdb_os_slowest_writer": "≥ 0.5",
    "redis_always_slowest_writer": "≥ 0.5",
    "redis_everysec_slowest_writer": "≥ 0.5",
    "index_100k_to_1k": "≤ 1.5",
    "memory_growth": "1",
    "file_growth": "1",
}


def markdown(report: Report) -> str:
    """Return the tables as Markdown."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    plan = report.plan
    for size, rows in report.rows.items():
        many = f"{plan.writers} writers with {plan.in_flight} puts at once"
        yield f"{size:,} bytes, {many}, 1 reader; times in ms:\n"
        yield f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
        for name, figures in rows.items():
            yield _row(name, figures)
        yield ""
    yield "| ratio | here | target |\n|---|---|---|"
    for name, value in report.ratios.items():
        yield f"| `{name}` | {value:.2f} | {_TARGETS.get(name, '')} |"
    for name, why in report.left_out.items():
        yield f"\nLeft out: {name}: {why}."


def _row(name: str, figures: Figures) -> str:
    drained = f"{figures.drained_puts_per_s:,.0f}" if figures.drained_puts_per_s is not None else ""
    paced = figures.paced.put_ms if figures.paced is not None else None
    cells = [
        f"`{name}`",
        f"{figures.puts_per_s:,.0f}",
        drained,
        *_quantiles(figures.put_ms),
        *_quantiles(figures.take_ms)[:2],
        f"{figures.cpu_ms:.3f}",
        *_quantiles(paced),
        f"{paced.samples:,}" if paced is not None else "",
    ]
    return f"| {' | '.join(cells)} |"


def _quantiles(latency: Latency | None) -> list[str]:
    values = (latency.p50, latency.p99, latency.p999) if latency is not None else (None, None, None)
    return ["" if value is None else f"{value:.3g}" for value in values]
