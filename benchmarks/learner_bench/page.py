"""The report: targets, and the tables of its page. No JAX here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BEGIN, END = "<!-- begin table -->", "<!-- end table -->"
LOOP_SPEED, UTILIZATION, TORCH_SPEED = 0.98, 0.45, 1.0
# The model and row that the targets are about.
TARGET: Final = ("135M", [1024])
_NAMES: Final = {
    "loop": "loop, of the bare step's speed",
    "utilization": "135M, 1,024-token rows, of the matmul peak",
    "torch": "135M, 1,024-token rows, torch's time ÷ ours",
}


def as_tree(value: Any) -> Any:
    """Return named tuples as objects by the names of their fields, all the way down."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): as_tree(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_tree(part) for part in value]
    return value


def targets(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each target that was measured its limit, what was got, and whether it is met.

    The loop's is judged by its slowest model; every figure is a median.
    """
    found: dict[str, Any] = {}
    if loops := report.get("loop"):
        found["loop"] = _judged(min(one["speed"]["median"] for one in loops), LOOP_SPEED)
    for one in report.get("utilization", ()):
        if (one["model"], one["segments"]) == TARGET:
            found["utilization"] = _judged(one["of_peak"]["median"], UTILIZATION)
    for one in _compared(report):
        if (one["model"], one["rows"][1:]) == TARGET:
            found["torch"] = _judged(one["speed_of_torch"]["cpu"]["median"], TORCH_SPEED)
    return found


def _judged(got: float, limit: float) -> dict[str, Any]:
    return {"limit": limit, "got": got, "met": got >= limit}


def _compared(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = report.get("torch", ())
    return () if isinstance(found, Mapping) else found


def markdown(report: Mapping[str, Any]) -> str:
    """Return the tables of the page, and on what they were measured."""
    machine = report["machine"]
    parts = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB; Python "
        f"{machine['python']}, jax {machine['jax']}; `{report['command']}`; one pinned core, load "
        f"{machine['load_1min']:.1f} at the start.",
        _table(("target", "limit", "got", "met"), _target_rows(report)),
    ]
    if missing := set(_NAMES) - set(report["targets"]):
        parts.append(f"Not measured: {'; '.join(sorted(_NAMES[name] for name in missing))}.")
    if report.get("utilization"):
        parts.append(_table(_STEP_COLUMNS, map(_step_row, report["utilization"])))
    if compared := _compared(report):
        parts.append(_table(_TORCH_COLUMNS, map(_torch_row, compared)))
    elif "torch" in report:
        parts.append(f"Not compared with torch: {report['torch']['skipped']}.")
    if gain := report.get("packing"):
        parts.append(_table(_GAIN_COLUMNS, [_gain_row(gain)]))
    if report.get("loop"):
        parts.append(_table(_LOOP_COLUMNS, map(_loop_row, report["loop"])))
        parts.append(_table(("loop of", "outside the programs, share of its time"), _outside(report)))
    return "\n\n".join(parts)


def _target_rows(report: Mapping[str, Any]) -> list[Sequence[str]]:
    return [
        (_NAMES[name], f"≥ {one['limit']:.2f}", f"{one['got']:.3f}", "yes" if one["met"] else "**no**")
        for name, one in report["targets"].items()
    ]


_STEP_COLUMNS: Final = (
    *("model", "row", "step, CPU s", "tokens/s", "of the peak", "of the best peak", "optimizer"),
    *("planned", "state", "process"),
)


def _step_row(one: Mapping[str, Any]) -> Sequence[str]:
    memory = one["memory"]
    return (
        one["model"],
        row_name(one["segments"]),
        f"{one['step']['median']:.3g}",
        f"{one['tokens_per_s']:,.0f}",
        _spread(one["of_peak"]),
        f"{one['of_best']:.2f} of {one['peak_flops'] / 1e9:.0f} GFLOP/s",
        f"{one['apply_share']:.0%}",
        *(_megabytes(memory[name]) for name in ("temporary", "state", "process_peak")),
    )


_TORCH_COLUMNS: Final = (
    *("model", "rows", "forebay, CPU s", "torch, CPU s", "torch ÷ forebay, CPU", "on the wall"),
    *("losses", "processes"),
)


def _torch_row(one: Mapping[str, Any]) -> Sequence[str]:
    ours, theirs = (sorted(one["cpu_s"][side]) for side in ("forebay", "torch"))
    sizes = (_megabytes(one["process_bytes"][side]) for side in ("forebay", "torch"))
    return (
        one["model"],
        f"{one['rows'][0]} × {one['rows'][1]:,}",
        f"{ours[len(ours) // 2]:.3g}",
        f"{theirs[len(theirs) // 2]:.3g}",
        _spread(one["speed_of_torch"]["cpu"]),
        _spread(one["speed_of_torch"]["wall"]),
        " and ".join(f"{one['losses'][side]:.5f}" for side in ("forebay", "torch")),
        " and ".join(sizes),
    )


_GAIN_COLUMNS: Final = ("model", "sequences", "packed", "padded", "padded ÷ packed, CPU", "losses")


def _gain_row(one: Mapping[str, Any]) -> Sequence[str]:
    return (
        one["model"],
        ", ".join(map(str, one["lengths"])),
        *(f"{one['rows'][way]} rows of {one['row_tokens']:,}" for way in ("packed", "padded")),
        _spread(one["gain"]["cpu"]),
        " and ".join(f"{one['losses'][way]:.5f}" for way in ("packed", "padded")),
    )


_LOOP_COLUMNS: Final = (
    *("loop of", "tokens a batch", "bare step, s", "speed", "speed in CPU time", "with what is left to do"),
    *("left to do, s", "checkpoint, s", "trained"),
)


def _loop_row(one: Mapping[str, Any]) -> Sequence[str]:
    write_s = one["checkpoint_write_s"]
    return (
        one["case"]["model"],
        f"{one['tokens']:,.0f}",
        f"{one['step_s']:.3g}",
        *(_spread(one[name]) for name in ("speed", "speed_cpu", "speed_drained")),
        f"{one['drain_s']:.2f}",
        "-" if write_s is None else f"{write_s:.2f}",
        "{} of {}".format(*one["trained"]),
    )


def _outside(report: Mapping[str, Any]) -> list[Sequence[str]]:
    return [
        (one["case"]["model"], ", ".join(f"{name} {share:.2%}" for name, share in one["outside"].items()))
        for one in report["loop"]
    ]


def row_name(segments: Sequence[int]) -> str:
    """Name a row by its length and the number of its segments.

    Example:
        >>> row_name([1000, 24]), row_name([256])
        ('1,024, 2 segments', '256, 1 segment')
    """
    return f"{sum(segments):,}, {len(segments)} segment{'s' if len(segments) > 1 else ''}"


def with_tables(text: str, tables: str) -> str:
    """Return a page with other tables between its marks."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def machine() -> dict[str, Any]:
    """Return what this is measured on."""
    from importlib.metadata import version

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _spread(one: Mapping[str, Any]) -> str:
    return f"{one['median']:.3f} ({one['low']:.3f}–{one['high']:.3f})"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _table(columns: Sequence[str], rows: Any) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
