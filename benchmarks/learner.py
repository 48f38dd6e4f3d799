"""What the learner's loop costs, how well a step uses its core, what memory it takes, and torch beside it.

    .venv/bin/python benchmarks/learner.py --json [--quick] [--torch-python PYTHON]
    .venv/bin/python benchmarks/learner.py --write docs/reference/learner-bench.md --torch-python PYTHON

Four sections, each figure in a process of its own on one core: `utilization` (time and memory of the bare
step, by model and row, against the best matrix product beside it), `torch` (the same rows by transformers,
with the Python that is named), `packing` (the same sequences packed and padded), `loop` (the whole learner
beside its bare step). One JSON object on stdout; `--write` puts the tables into a page, between its marks;
stderr says what is measured. What took turns is compared round by round; CPU time stands beside wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.learner_bench import page  # noqa: E402
from benchmarks.learner_bench.plan import COMPUTE, EFFORTS, SECTIONS, Effort  # noqa: E402
from forebay.launch.placement import keep_freed_memory, share_one_heap, with_huge_pages  # noqa: E402
from forebay.models.settings import ComputeSettings  # noqa: E402

NO_TORCH = "no Python with torch and transformers was named (--torch-python)"


def utilization(case: list[Any], seconds: float, compute: dict[str, Any]) -> Any:
    """Time one step against the peak."""
    from benchmarks.learner_bench import peak, step
    from benchmarks.learner_bench.shapes import Case

    model, segments, rounds = case
    return step.measure_utilization(
        Case(model, tuple(segments), rounds), peak.MatmulPeak(seconds=seconds), ComputeSettings(**compute)
    )


def torch(case: list[Any], python: str, seconds: float, compute: dict[str, Any]) -> Any:
    """Let both sides take turns."""
    from benchmarks.learner_bench import beside_torch, peak
    from benchmarks.learner_bench.shapes import Case

    model, segments, rounds = case
    with tempfile.TemporaryDirectory() as scratch:
        beside, ours = beside_torch.compare(
            Case(model, tuple(segments), rounds),
            python,
            Path(scratch),
            peak.MatmulPeak(seconds=seconds),
            ComputeSettings(**compute),
        )
    return {"beside": beside, "utilization": ours}


def packing(gain: list[Any], compute: dict[str, Any]) -> Any:
    """Time packed and padded rows."""
    from benchmarks.learner_bench import packing_gain

    model, lengths, row_tokens, rounds = gain
    return packing_gain.measure_gain(model, tuple(lengths), row_tokens, rounds, ComputeSettings(**compute))


def loop(case: list[Any], background: list[int]) -> Any:
    """Run the whole loop beside its bare step."""
    from benchmarks.learner_bench import whole_loop

    model, groups, lengths, *sizes = case
    wanted = whole_loop.LoopCase(model, groups, tuple(lengths), *sizes)
    with tempfile.TemporaryDirectory() as scratch:
        return whole_loop.measure_loop(wanted, Path(scratch), background)


CHILDREN: dict[str, Callable[..., Any]] = {
    "utilization": utilization,
    "torch": torch,
    "packing": packing,
    "loop": loop,
}


def in_child(section: str, **arguments: Any) -> Any:
    """Measure in a process of its own, on the learner's core."""
    print(f"{section} {json.dumps(arguments)}", file=sys.stderr, flush=True)
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | one_thread | {"JAX_PLATFORMS": "cpu"} | with_huge_pages(os.environ)
    command = [sys.executable, __file__, "--child", json.dumps([section, arguments])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    effort: Effort, sections: list[str], python: str | None, compute: dict[str, Any]
) -> dict[str, Any]:
    """Measure the sections that are asked for."""
    core, background = cores()
    found: dict[str, Any] = {
        "machine": page.machine(),
        "core": core,
        "compute": compute,
        "command": " ".join(["benchmarks/learner.py", *sys.argv[1:]]),
    }
    common: dict[str, Any] = {"seconds": effort.peak_s, "compute": compute}
    steps: list[dict[str, Any]] = []
    if "torch" in sections and python is None:
        found["torch"] = {"skipped": NO_TORCH}
    elif "torch" in sections:
        found["torch"] = []
        for case in effort.beside_torch:
            both = in_child("torch", case=case, python=python, **common)
            found["torch"].append({"model": case.model, **both["beside"]})
            steps.append({"model": case.model, **both["utilization"]})
    if "utilization" in sections:
        known = {(one["model"], tuple(one["segments"])) for one in steps}
        for case in effort.steps:
            if (case.model, case.segments) not in known:
                steps.append({"model": case.model, **in_child("utilization", case=case, **common)})
    found["utilization"] = sorted(steps, key=lambda one: (one["flops"]["matrices"], one["model"]))
    if "packing" in sections:
        found["packing"] = in_child("packing", gain=effort.gain, compute=compute)
    if "loop" in sections:
        found["loop"] = [in_child("loop", case=case, background=background) for case in effort.loops]
    return found | {"targets": page.targets(found)}


def cores() -> tuple[int, list[int]]:
    """Return the core of the step, and those of the threads beside it."""
    available = sorted(os.sched_getaffinity(0))
    return available[-1], available[:-1] or available


def _compute(given: list[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the settings of the step; what they cannot be is refused before anything is measured."""
    if wrong := [item for item in given if "=" not in item]:
        parser.error(f"--compute needs KEY=VALUE, not {wrong[0]!r}")
    wanted = COMPUTE | dict(item.split("=", 1) for item in given)
    try:
        ComputeSettings(**wanted)
    except ValidationError as error:
        parser.error(f"--compute: {error}")
    return wanted


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (always done)")
    parser.add_argument("--quick", action="store_true", help="small models: ends within a minute")
    parser.add_argument("--effort", choices=list(EFFORTS), help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    parser.add_argument("--torch-python", help="a Python that has torch and transformers")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="measure these sections"
    )
    parser.add_argument(
        "--compute", nargs="*", default=[], metavar="KEY=VALUE", help="settings under [compute] of the step"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        os.sched_setaffinity(0, {cores()[0]})
        share_one_heap()
        keep_freed_memory()
        section, arguments = json.loads(options.child)
        print(json.dumps(page.as_tree(CHILDREN[section](**arguments))))
        return
    compute = _compute(options.compute, parser)
    if options.write and not options.write.is_file():
        parser.error(f"--write needs a page with the marks of a table, and {options.write} is no file")
    if options.torch_python and shutil.which(options.torch_python) is None:
        parser.error(f"--torch-python {options.torch_python} is no program")
    effort = EFFORTS[options.effort or ("quick" if options.quick else "full")]
    report = measure(effort, options.only, options.torch_python, compute)
    if options.write:
        options.write.write_text(page.with_tables(options.write.read_text(), page.markdown(report)))
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
