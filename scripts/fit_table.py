"""Writes the table of docs/reference/fit.md: runs `forebay fit` for each row, which answers from its cache.

.venv/bin/python scripts/fit_table.py --write llama3-70b

Without the cache a row takes minutes to compile, and libtpu has to be installed. Each row is written as soon
as it is known, and the others stay as they are: what was stopped goes on where it was.
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
    "llama3-8b --topology v5e:4x4 --mesh fsdp=4,tensor=4 --remat full --rows 8",
    "llama3-70b --topology v5p:4x4x4 --mesh fsdp=16,tensor=4 --remat full --rows 368",
    "llama3-70b --topology v5p:4x4x4 --mesh fsdp=16,tensor=4 --remat full --rows 512",
    "llama3-70b --topology v6e:16x16 --mesh fsdp=64,tensor=4 --remat full --rows 448",
    "llama3-70b --topology v5e:4x4",
    "llama3-405b --topology v5p:4x8x8 --mesh fsdp=32,tensor=8 --remat dots --rows 32 --tokens 1048576",
    "qwen3-30b-a3b --topology v6e:8x8 --mesh fsdp=32,tensor=2 --remat full --rows 256",
    "qwen3-235b-a22b --topology v6e:16x16 --mesh fsdp=16,tensor=4,expert=4 --remat full --rows 64"
    " --tokens 1048576",
    "llama3-8b --topology v5p:4x4x4 --mesh fsdp=16,context=4 --length 131072 --remat full --rows 32",
)
_GIB = 1 << 30
_HEAD = (
    "| `forebay fit ...` | mesh, remat | tokens a step | peak of limit, GiB |"
    " parameters, optimizer, gradients, activations, temporary | arithmetic's peak | roofline, s |"
    " compiler's computing, s | tokens/s | waits for | by |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def main() -> None:
    """Write the rows, or print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put them into the page, one after the other")
    parser.add_argument("--analytic", action="store_true", help="arithmetic only, no compiler")
    parser.add_argument("words", nargs="*", help="only commands that hold one of these words")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.words or any(word in row for word in options.words)]
    for row in chosen:
        line = _line(row, options.analytic)
        sys.stdout.write(line + "\n")
        if options.write:
            _put(row, line)


def _put(row: str, line: str) -> None:
    """Replace one line of the table; commands that are no row any more go."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {text.split("`")[1]: text for text in table.splitlines() if text.startswith("| `")} | {row: line}
    text = "\n".join([*_HEAD, *(lines[one] for one in ROWS if one in lines)])
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}")


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
    said, computing = found["arithmetic_peak_bytes"], found["compiler_computing_s"]
    error = said / found["bytes_per_chip"]["peak"] - 1
    cells = (
        f"`{row}`",
        f"{mesh}, {found['remat']}",
        f"{found['tokens_per_step']:,} ({repeats}{found['rows']} × {found['length']:,})",
        f"{fits}{sizes['peak']:.2f} of {found['limit_bytes'] / _GIB:.2f}",
        ", ".join(f"{sizes[name]:.2f}" for name in names),
        f"{said / _GIB:.2f} ({error:+.1%})" if found["source"] == "compiler" else "the same",
        f"{found['step_s_roofline']:.2f}",
        "" if computing is None else f"{computing:.2f}",
        f"{found['tokens_per_s']:,.0f}",
        found["bound"],
        found["source"],
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
