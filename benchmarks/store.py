"""How fast the store is, beside what the machine can do at all; the same as `forebay store bench`.

    .venv/bin/python benchmarks/store.py --json [--quick] [--engines lmdb_fsync,lmdb_os]
    .venv/bin/python benchmarks/store.py --write docs/reference/store-bench.md

One JSON object; `--write` puts the tables into a page, between its marks. stderr says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from forebay.cli.store_bench import make_plan
from forebay.errors import ForebayError
from forebay.store.bench import ENGINES, judge, markdown, run_bench, to_json

BEGIN, END = "<!-- begin table -->", "<!-- end table -->"


def with_tables(page: str, tables: str) -> str:
    """Return a page with other tables between its marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (always done)")
    parser.add_argument("--markdown", action="store_true", help="print tables instead")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--engines", default=",".join(ENGINES), help="rows, separated by commas")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to be measured")
    options = parser.parse_args()
    try:
        plan = make_plan(options.directory, engines=options.engines, quick=options.quick)
        report = run_bench(plan, lambda what: print(what, file=sys.stderr))
    except ForebayError as error:
        raise SystemExit(f"error: {error}") from None
    if options.write:
        options.write.write_text(with_tables(options.write.read_text(), markdown(report)))
    if options.markdown:
        print(markdown(report))
    else:
        json.dump(to_json(report) | {"verdict": judge(report, None)}, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
