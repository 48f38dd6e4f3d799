"""Goodput of controlled episodes in flight, beside fixed numbers of them, from a cold start.

    .venv/bin/python benchmarks/controller.py --json [--quick] [--seeds 0-4,5-14] [--case NAME,NAME]
    .venv/bin/python benchmarks/controller.py --runs runs.jsonl --write docs/how-to/episodes-in-flight.md

The product's lanes, controllers, rests, dispatch, group and staleness rules on virtual time, so that the
machine does not matter; environments, the generator and the learner's steps are times to wait. The controller
is told nothing of the case. Each fixed number is one run of the same case with the same seed. Two readings:
beside the one number whose mean over the seeds is highest, and beside each seed's own best, chosen after;
either among those of which the environment refuses at most 2 % of the calls. All numbers are run with the
first seed; those that train less than 0.8 of the best there, or are refused more than 6 %, not with others.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.controller_study.cases import CASES, Case
from benchmarks.controller_study.judging import Ran, Verdict, judge, table, worth_running
from benchmarks.controller_study.world import World

BEGIN, END = "<!-- begin tables -->", "<!-- end tables -->"
_PROCESSES: Final = (1, 4)
_SEEDS: Final = "0-4,5-14"
_QUICK: Final = ("light tail", "slower past 48 at once", "refuses past 48 at once")
_MOST_DECISIONS: Final = 200


class Job(NamedTuple):
    """A run to be made: a case, a seed, and a fixed number or so many controlled processes."""

    case: Case
    seed: int
    fixed: int | None = None
    processes: int = 1

    @property
    def key(self) -> tuple[str, int, int | None, int, int]:
        """What tells it from others."""
        return self.case.name, self.seed, self.fixed, self.processes, self.case.steps


def run(job: Job) -> Ran:
    """Make a run."""
    outcome = World(job.case, fixed=job.fixed, processes=job.processes, seed=job.seed).run()
    return Ran(
        case=job.case.name,
        seed=job.seed,
        fixed=job.fixed,
        processes=job.processes,
        steps=job.case.steps,
        fresh_per_s=outcome.fresh_per_s,
        refused=outcome.refused / outcome.calls if outcome.calls else 0.0,
        lost=outcome.lost,
        busy=outcome.busy,
        mean_live=outcome.mean_live,
        staleness=outcome.staleness,
        decisions=tuple(
            f"{one.at_s:.0f} s, {one.environment}: {one.decision}" for one in outcome.told[:_MOST_DECISIONS]
        ),
    )


class Runs:
    """Makes runs, and keeps them.

    Args:
        path: A file with a line per run: those that it holds are not made again, new ones are added. Remove
            it when the rules change. None keeps nothing.
        jobs: Runs made at a time.
    """

    def __init__(self, path: Path | None, jobs: int) -> None:
        self._path, self._jobs = path, jobs
        lines = path.read_bytes().splitlines() if path is not None and path.exists() else []
        known = [msgspec.json.decode(line, type=Ran) for line in lines]
        self._known = {(one.case, one.seed, one.fixed, one.processes, one.steps): one for one in known}

    def make(self, jobs: Sequence[Job]) -> list[Ran]:
        """Return the runs, in order."""
        missing = [job for job in jobs if job.key not in self._known]
        for job, ran in zip(missing, self._made(missing), strict=True):
            self._known[job.key] = ran
            if self._path is not None:
                with self._path.open("ab") as file:
                    file.write(msgspec.json.encode(ran) + b"\n")
        return [self._known[job.key] for job in jobs]

    def _made(self, jobs: Sequence[Job]) -> Iterator[Ran]:
        if self._jobs == 1:
            yield from map(run, jobs)
            return
        with ProcessPoolExecutor(self._jobs) as pool:
            yield from pool.map(run, jobs)


def measure(
    case: Case,
    fixed: Sequence[int],
    processes: Sequence[int],
    seeds: Sequence[int],
    make: Callable[[Sequence[Job]], list[Ran]],
) -> list[Ran]:
    """Return the runs of a case with fixed numbers that may be the best, and with controllers.

    Args:
        case: What is run.
        fixed: Numbers to be tried.
        processes: Numbers of controlled processes.
        seeds: Seeds.
        make: Makes runs.
    """
    first = make([Job(case, seeds[0], number) for number in fixed])
    jobs = [Job(case, seed, number) for seed in seeds[1:] for number in worth_running(first)]
    jobs += [Job(case, seed, None, number) for seed in seeds for number in processes]
    return first + make(jobs)


def seeds_of(text: str) -> list[list[int]]:
    """Return blocks of seeds, from words such as `0-4,5-14`.

    Raises:
        ValueError: It is not like that.
    """
    blocks = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"seeds are written as 0-4,5-14 (got {text!r})")
        blocks.append(list(range(int(found[1]), int(found[2] or found[1]) + 1)))
    return blocks


def with_tables(page: str, tables: str) -> str:
    """Return a page with other tables between its marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def _named(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _tables(blocks: Iterable[tuple[Sequence[int], dict[str, Verdict]]]) -> str:
    return "\n\n".join(f"{_named(seeds).capitalize()}:\n\n{table(verdicts)}" for seeds, verdicts in blocks)


def _as_json(blocks: Iterable[tuple[Sequence[int], dict[str, Verdict]]], runs: Sequence[Ran]) -> str:
    besides = [(one, beside) for _, by in blocks for one in by.values() for beside in one.controlled.values()]
    report: dict[str, Any] = {
        "least_ratio": min(beside.ratio.value for _, beside in besides),
        "least_ratio_of_a_seed": min(min(beside.ratios) for _, beside in besides),
        "most_refused": max(beside.refused for _, beside in besides),
        "cases": {_named(seeds): msgspec.to_builtins(verdicts, str_keys=True) for seeds, verdicts in blocks},
        "runs": msgspec.to_builtins(runs),
    }
    return json.dumps(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="three cases, seed 0, half of the numbers and of the batches"
    )
    parser.add_argument("--case", help="only cases whose names hold one of these: heavy tail,fast and slow")
    parser.add_argument("--seeds", default=_SEEDS, help="blocks of seeds, a table each: 0-4,5-14")
    parser.add_argument("--runs", type=Path, help="keep runs in this file, and make none again that it holds")
    parser.add_argument("--jobs", type=int, default=1, help="runs made at a time")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    options = parser.parse_args()
    try:
        options.blocks = [[0]] if options.quick else seeds_of(options.seeds)
    except ValueError as error:
        parser.error(str(error))
    if options.write is not None and not (options.write.is_file() and BEGIN in options.write.read_text()):
        parser.error(f"--write needs a page with the marks of the tables, and {options.write} is none")
    if options.jobs < 1:
        parser.error(f"--jobs must be 1 or more (got {options.jobs})")
    words = options.case.split(",") if options.case is not None else [""]
    options.cases = [case for case in CASES if any(word.strip() in case.name for word in words)]
    for word in words:
        if not any(word.strip() in case.name for case in CASES):
            parser.error(f"no case has {word!r} in its name; there are: {', '.join(c.name for c in CASES)}")
    return options


def main() -> None:
    """Measure, and print tables or JSON."""
    options = _options()
    cases = [case for case in options.cases if not options.quick or case.name in _QUICK]
    runs, every = Runs(options.runs, options.jobs), list[Ran]()
    blocks: list[tuple[list[int], dict[str, Verdict]]] = []
    for seeds in options.blocks:
        verdicts: dict[str, Verdict] = {}
        for case in cases:
            fixed = case.fixed[1::2] if options.quick else case.fixed
            case_run = case._replace(steps=case.steps // 2) if options.quick else case
            ran = measure(case_run, fixed, (1,) if options.quick else _PROCESSES, seeds, runs.make)
            every += ran
            verdicts[case.name] = judge(ran, seeds)
            print(table({case.name: verdicts[case.name]}).splitlines()[-1], file=sys.stderr)
        blocks.append((seeds, verdicts))
    if options.write is not None:
        options.write.write_text(with_tables(options.write.read_text(), _tables(blocks)))
    print(_as_json(blocks, every) if options.json else _tables(blocks))


if __name__ == "__main__":
    main()
