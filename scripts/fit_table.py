"""Writes the table of docs/reference/fit.md: runs `forebay fit` for each row, which answers from its cache.

.venv/bin/python scripts/fit_table.py --write

Without the cache a row takes minutes to compile, and libtpu has to be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "fit.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
ROWS = (
    "llama3-8b --topology v5e:4x4",
    "llama3-8b --topology v6e:4x4",
    "llama3-70b --topology v5p:4x4x4 --mesh fsdp=16,tensor=4 --remat full",
    "llama3-70b --topology v6e:16x16 --mesh fsdp=32,tensor=8 --remat full",
    "llama3-70b --topology v5e:4x4",
    "llama3-405b --topology v5p:4x8x8 --tokens 1048576",
    "qwen3-30b-a3b --topology v6e:8x8",
    "qwen3-235b-a22b --topology v6e:16x16 --tokens 1048576",
    "llama3-8b --topology v5p:4x4x4 --mesh fsdp=16,context=4 --length 131072 --remat full",
)
_GIB = 1 << 30
_HEAD = (
    "| `forebay fit ...` | mesh, remat | tokens a step | peak of limit, GiB |"
    " parameters, optimizer, gradients, activations, temporary | step, s | tokens/s | waits for | by |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    """Write the table, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into the page")
    parser.add_argument("--analytic", action="store_true", help="arithmetic only, no compiler")
    parser.add_argument("rows", nargs="*", help="only commands that hold one of these words")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.rows or any(word in row for word in options.rows)]
    text = _HEAD + "".join(_line(row, options.analytic) for row in chosen)
    if not options.write:
        sys.stdout.write(text)
        return
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2])


def _line(row: str, analytic: bool) -> str:
    arguments = [*row.split(), "--json", *(["--analytic"] if analytic else [])]
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "fit", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    if not done.stdout:
        raise SystemExit(f"`forebay fit {row}` ended with exit code {done.returncode}")
    return _cells(row, json.loads(done.stdout))


def _cells(row: str, found: dict[str, Any]) -> str:
    sizes = {name: size / _GIB for name, size in found["bytes_per_chip"].items()}
    mesh = " × ".join(f"{axis} {size}" for axis, size in found["mesh"].items() if size > 1)
    names = ("parameters", "optimizer", "gradients", "activations", "temporary")
    fits = "" if found["fits"] else "does not fit: "
    repeats = f"{found['micro_batches']} × " if found["micro_batches"] > 1 else ""
    cells = (
        f"`{row}`",
        f"{mesh}, {found['remat']}",
        f"{found['tokens_per_step']:,} ({repeats}{found['rows']} × {found['length']:,})",
        f"{fits}{sizes['peak']:.2f} of {found['limit_bytes'] / _GIB:.2f}",
        ", ".join(f"{sizes[name]:.2f}" for name in names),
        f"{found['step_s_roofline']:.2f}",
        f"{found['tokens_per_s']:,.0f}",
        found["bound"],
        found["source"],
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main()
