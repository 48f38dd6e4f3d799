"""How full the micro-batches of an optimizer step are, what they compute in vain, and that nothing compiles.

    .venv/bin/python benchmarks/batching.py --json [--quick]
    .venv/bin/python benchmarks/batching.py --write docs/reference/batching-bench.md

Every step is packed by itself: 32 or 512 episodes of one length distribution, over 1 or 8 data shards, with
at most 8 batch shapes. The shapes are chosen on steps that are not the measured ones. One JSON object on
stdout; `--write` puts the tables into a page, between its marks; stderr says what is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from forebay.batching.ladder import bucket_lengths, build_ladder, measured_ladder
from forebay.batching.packing import Bucket, Packing, Row, cover_rows, place_rows, plan_packing
from forebay.batching.settings import BatchingSettings
from forebay.batching.work import fewest_slots, padded_ratio

BEGIN, END = "<!-- begin table -->", "<!-- end table -->"
RECORDED: Final = Path(__file__).parent / "data" / "lengths.json"
MAX_PROGRAMS: Final = 8
CELLS: Final = tuple((episodes, shards) for episodes in (32, 512) for shards in (1, 8))
# Members of a group come from one task, so recorded lengths are drawn by group.
GROUP_SIZE: Final = 8
# Most tokens of a micro-batch on one device: what its memory would allow.
MAX_ROW_TOKENS: Final = 32_768
# Attention is counted for this width and block; a wider model makes it a smaller part.
HIDDEN_SIZE: Final = 2048
BLOCK_TOKENS: Final = 128
# A step of 10,000 episodes is held against a model of 1e9 parameters on 8 accelerators that each reach 4e14
# operations per second, with 6 operations per parameter and token.
STEP_S_PER_TOKEN: Final = 6 * 1e9 / (8 * 4e14)
# The tiny model that shows that nothing compiles has sequences this many times shorter.
SHRINK: Final = 64

Steps = Iterator[list[int]]


class Distribution(NamedTuple):
    """Where the lengths of episodes come from.

    Args:
        name: For the report.
        says: What it is.
        max_length: Longest episode, tokens.
        draw: From a generator and a number of episodes to their lengths.
    """

    name: str
    says: str
    max_length: int
    draw: Callable[[random.Random, int], list[int]]


class Effort(NamedTuple):
    """How much is measured.

    Args:
        steps: Measured steps of a cell, by episodes.
        chosen_on: Steps that the shapes are chosen on, by episodes; 0 takes the built-in shapes.
        trained: Steps of the tiny model for each distribution.
        shapes: That the tiny model is compiled for.
    """

    steps: dict[int, int]
    chosen_on: dict[int, int]
    trained: int
    shapes: int


FULL: Final = Effort({32: 200, 512: 40}, {32: 96, 512: 16}, trained=1000, shapes=8)
QUICK: Final = Effort({32: 60, 512: 10}, {32: 10, 512: 0}, trained=50, shapes=2)


def lognormal(median: float, sigma: float, low: int, high: int) -> Callable[[random.Random, int], list[int]]:
    """Return a source of lengths with a heavy tail, cut at `high`."""

    def draw(rng: random.Random, episodes: int) -> list[int]:
        return [
            round(min(max(rng.lognormvariate(np.log(median), sigma), low), high)) for _ in range(episodes)
        ]

    return draw


def tool_use(rng: random.Random, episodes: int) -> list[int]:
    """Draw 7 of 10 answers at once, 400 tokens long, and 3 with tools, 6,000 tokens long."""
    return [
        round(min(max(rng.gauss(6000, 1500), 1000), 12_288))
        if rng.random() < 0.3
        else round(min(max(rng.gauss(400, 100), 64), 1000))
        for _ in range(episodes)
    ]


def uniform(rng: random.Random, episodes: int) -> list[int]:
    """Draw 64 to 4,096 tokens, all equally likely."""
    return [rng.randint(64, 4096) for _ in range(episodes)]


def recorded(name: str) -> Distribution:
    """Return the lengths of recorded episodes; groups hold episodes of one kind."""
    entry = json.loads(RECORDED.read_text())[name]
    lengths, kinds = entry["lengths"], len(entry["parts"])

    def draw(rng: random.Random, episodes: int) -> list[int]:
        groups = [lengths[rng.randrange(kinds) :: kinds] for _ in range(-(-episodes // GROUP_SIZE))]
        return [length for kind in groups for length in rng.choices(kind, k=GROUP_SIZE)][:episodes]

    return Distribution(name, f"{entry['package']}, {entry['policy']}", max(lengths), draw)


def distributions() -> list[Distribution]:
    """Return all of them."""
    return [
        Distribution(
            "lognormal", "median 2,048, sigma 1, cut at 32,768", 32_768, lognormal(2048, 1, 16, 32_768)
        ),
        Distribution("tool_use", "7 of 10 about 400, 3 of 10 about 6,000", 12_288, tool_use),
        Distribution("uniform", "64 to 4,096", 4096, uniform),
        recorded("textarena"),
        recorded("reasoning_gym"),
    ]


def settings_of(distribution: Distribution, episodes: int, shards: int) -> BatchingSettings:
    """Return settings with rows as long as a device's share of a step, within its memory."""
    sample = distribution.draw(random.Random(0), 4096)
    share = 1.25 * sum(sample) / len(sample) * episodes / shards
    row_length = max(distribution.max_length, min(MAX_ROW_TOKENS, round(share)))
    return BatchingSettings(
        max_length=distribution.max_length,
        row_length=row_length,
        rows=shards,
        max_programs=MAX_PROGRAMS,
        min_row_length=8,
    )


def measure_cell(distribution: Distribution, episodes: int, shards: int, effort: Effort) -> dict[str, Any]:
    """Return how steps of so many episodes fill their micro-batches, and the same for the baselines."""
    settings = settings_of(distribution, episodes, shards)
    chosen_on = draw_steps(distribution, episodes, effort.chosen_on[episodes], seed=1)
    ladder = measured_ladder(chosen_on, settings, shards) if chosen_on else build_ladder(settings, shards)
    steps = draw_steps(distribution, episodes, effort.steps[episodes], seed=2)
    largest = max(sum(step) for step in steps)
    log(f"{distribution.name}: {episodes} episodes over {shards} shards, up to {largest} tokens a step")
    return {
        "episodes": episodes,
        "shards": shards,
        "row_length": settings.packed_length,
        "ladder": "measured" if chosen_on else "built-in",
        "buckets": [list(bucket) for bucket in ladder],
        "fill_limit": mean(sum(step) / fewest_slots(step, shards) for step in steps),
        **packed_figures(steps, [plan_packing(step, ladder) for step in steps], len(ladder)),
        "built_in": figures_of(steps, build_ladder(settings, shards)),
        "baselines": {
            name: unpacked_figures(steps, [Bucket(shards, length) for length in lengths])
            for name, lengths in baseline_lengths(distribution, chosen_on or steps).items()
        },
    }


def draw_steps(distribution: Distribution, episodes: int, count: int, seed: int) -> list[list[int]]:
    """Draw steps; the same seed draws the same ones."""
    rng = random.Random(f"{distribution.name} {episodes} {seed}")
    return [distribution.draw(rng, episodes) for _ in range(count)]


def figures_of(steps: Sequence[list[int]], ladder: Sequence[Bucket]) -> dict[str, Any]:
    """Return the figures of a ladder."""
    return packed_figures(steps, [plan_packing(step, ladder) for step in steps], len(ladder))


def packed_figures(
    steps: Sequence[list[int]], packings: Sequence[Packing], num_programs: int
) -> dict[str, Any]:
    """Return fill, padded computation and micro-batches of packed steps."""
    fills = sorted(sum(step) / packing.num_slots for step, packing in zip(steps, packings, strict=True))
    return {
        "fill": mean(fills),
        "fill_p5": fills[len(fills) // 20],
        "padded_ratio": padded_ratio(
            zip(steps, packings, strict=True), hidden_size=HIDDEN_SIZE, block_tokens=BLOCK_TOKENS
        ),
        "programs": num_programs,
        "micro_batches": mean(len(packing.buckets) for packing in packings),
    }


def unpacked_figures(steps: Sequence[list[int]], ladder: Sequence[Bucket]) -> dict[str, Any]:
    """Return the figures of one episode a row: rows of equal length together, as few slots as can be.

    Without a plan a shape is compiled when it first comes: `compiles_after_warmup` counts those that come
    after a tenth of the steps.
    """
    packings = []
    for step in steps:
        rows = [Row((i,), step[i]) for i in sorted(range(len(step)), key=lambda i: -step[i])]
        packings.append(place_rows(step, cover_rows([row.used for row in rows], ladder), rows))
    warm = len(packings) // 10
    early, all_used = (
        {bucket for one in some for bucket in one.buckets} for some in (packings[:warm], packings)
    )
    return packed_figures(steps, packings, len(ladder)) | {"compiles_after_warmup": len(all_used - early)}


def baseline_lengths(distribution: Distribution, steps: Sequence[list[int]]) -> dict[str, list[int]]:
    """Return the row lengths of what others do: one, powers of two, and as many quantiles as programs."""
    seen = sorted(length for step in steps for length in step)
    parts = [seen[len(seen) * part // MAX_PROGRAMS] for part in range(1, MAX_PROGRAMS)]
    longest = distribution.max_length
    return {
        "pad_to_max": [longest],
        "pad_to_power_of_two": [*bucket_lengths(1 << (longest - 1).bit_length(), 16)],
        "bucketing": sorted({*parts, longest}),
    }


def time_packing(distribution: Distribution) -> dict[str, float]:
    """Return what packing 10,000 episodes takes of a processor, beside the step that they feed.

    Processor time, the best of a few: packing runs in a thread of its own, ahead of the step.
    """
    settings = settings_of(distribution, 512, 8)
    lengths = distribution.draw(random.Random(3), 10_000)
    ladder = build_ladder(settings, 8)
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        plan_packing(lengths, ladder)
        times_s.append(time.process_time() - began_s)
    return {
        "plan_cpu_s": min(times_s),
        "tokens": sum(lengths),
        "of_step": min(times_s) / (sum(lengths) * STEP_S_PER_TOKEN),
    }


def count_compiles(sources: Sequence[Distribution], num_steps: int, num_shapes: int) -> dict[str, int]:
    """Train a tiny model on random steps of shrunken lengths; return the compilations after warm-up of each.

    All distributions share one ladder. Steps hold 1 to 32 episodes, so that last partial ones are among them,
    and every other step also asks for the logprobs of a fixed policy.
    """
    from tiny_learner import TinyLearner

    settings = BatchingSettings(max_length=MAX_ROW_TOKENS // SHRINK, rows=1, max_programs=num_shapes)
    ladder = build_ladder(settings)
    compiles = {}
    with TinyLearner(ladder) as learner:
        for source in sources:
            rng = random.Random(source.name)
            before = learner.compiles_after_warmup
            for number in range(num_steps):
                drawn = source.draw(rng, rng.randint(1, 32))
                learner.step([max(-(-length // SHRINK), 2) for length in drawn], scored=number % 2 == 1)
            compiles[source.name] = learner.compiles_after_warmup - before
            log(f"{source.name}: {num_steps} steps of the tiny model, {compiles[source.name]} compilations")
    return compiles


def measure(effort: Effort) -> dict[str, Any]:
    """Return everything: by distribution the worst cell at the top, then each cell."""
    sources = distributions()
    compiles = count_compiles(sources, effort.trained, effort.shapes)
    result: dict[str, Any] = {}
    for source in sources:
        cells = [measure_cell(source, episodes, shards, effort) for episodes, shards in CELLS]
        result[source.name] = {
            "lengths": source.says,
            **worst(cells),
            "compiles_after_warmup": compiles[source.name],
            "steps_after_warmup": effort.trained,
            "packing_10000": time_packing(source),
            "cells": cells,
            "baselines": {
                name: worst([cell["baselines"][name] for cell in cells]) for name in cells[0]["baselines"]
            },
        }
    return result


def worst(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the least fill, and the most of everything else, of any cell."""
    most = [key for key in ("padded_ratio", "programs", "compiles_after_warmup") if key in cells[0]]
    return {"fill": min(cell["fill"] for cell in cells)} | {
        key: max(cell[key] for cell in cells) for key in most
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the tables of the page."""
    columns = (
        *("lengths", "episodes", "shards", "fill", "5th percentile", "limit", "padded ÷ needed", "shapes"),
        *("micro-batches", "built-in shapes", "to the maximum", "to powers of two", "bucketing"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, entry in result.items():
        for cell in entry["cells"]:
            others = [cell["built_in"]["fill"], *(base["fill"] for base in cell["baselines"].values())]
            figures = [cell["fill"], cell["fill_p5"], cell["fill_limit"], cell["padded_ratio"]]
            lines.append(
                f"| `{name}` | {cell['episodes']} | {cell['shards']} | "
                + " | ".join(f"{figure:.3f}" for figure in figures)
                + f" | {cell['programs']} | {cell['micro_batches']:.1f} | "
                + " | ".join(f"{figure:.3f}" for figure in others)
                + " |"
            )
    lines += [
        "",
        "| lengths | 10,000 episodes | packed, processor time | of the step | compilations |",
        "|---|---|---|---|---|",
    ]
    for name, entry in result.items():
        packing, steps = entry["packing_10000"], entry["steps_after_warmup"]
        lines.append(
            f"| `{name}` | {packing['tokens']:,} tokens | {packing['plan_cpu_s']:.3f} s | "
            f"{packing['of_step']:.2%} | {entry['compiles_after_warmup']} in {steps} steps |"
        )
    return "\n".join(lines)


def with_tables(page: str, tables: str) -> str:
    """Return a page with other tables between its marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def mean(values: Any) -> float:
    """Return the mean, as a plain number."""
    return float(np.mean(list(values)))


def log(message: str) -> None:
    """Say what goes on, away from stdout."""
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (always done)")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    options = parser.parse_args()
    result = measure(QUICK if options.quick else FULL)
    if options.write:
        options.write.write_text(with_tables(options.write.read_text(), markdown(result)))
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
