"""How fast attention is and how much memory it takes: blockwise beside dense, forward and backward, one core.

    .venv/bin/python benchmarks/attention.py --json [--quick]
    .venv/bin/python benchmarks/attention.py --write docs/explanation/attention.md

One JSON object; `--write` puts the tables into a page, between its marks. Heads are those of SmolLM2-135M: 9
for queries, 3 for keys, 64 wide. Times are CPU seconds of one pinned thread, medians of runs that take turns,
so that a busy machine changes them little; every figure comes with its ratio to what ran beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- begin table -->", "<!-- end table -->"
NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, NUM_LAYERS = 9, 3, 64, 30
# Weights of SmolLM2-135M that every token is multiplied by, its tied output head included.
NUM_WEIGHTS = 134_515_008
PACKED = {
    "8 equal segments": (512,) * 8,
    "8 segments": (1200, 900, 700, 500, 350, 250, 150, 46),
    "1 segment": (4096,),
}
TARGET_TIME, TARGET_MEMORY, TARGET_UTILIZATION = 0.4, 0.25, 0.45
FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def gradient_program(kind: str, lengths: Sequence[int], block_tokens: int | None) -> tuple[Any, Any]:
    """Compile forward and backward of one row; return the program and its inputs."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from forebay.models.attention import attention
    from forebay.models.settings import ComputeSettings

    block = {} if block_tokens is None else {"attention_block_tokens": block_tokens}
    compute = ComputeSettings(attention=kind, **block)
    segment_ids = jnp.asarray(np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)[None])
    keys = jax.random.split(jax.random.key(0), 4)
    counts = (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS, NUM_HEADS)
    heads = [
        jax.random.normal(key, (1, sum(lengths), count, HEAD_SIZE))
        for key, count in zip(keys, counts, strict=True)
    ]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, weight: jax.Array) -> jax.Array:
        return (attention(q, k, v, segment_ids, compute) * weight).sum()

    return jax.jit(jax.grad(loss, (0, 1, 2))).lower(*heads).compile(), heads


def cpu_seconds(programs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each program; they take turns."""
    import jax

    spent: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            began_s = time.process_time()
            jax.block_until_ready(program())
            if number:
                spent[name].append(time.process_time() - began_s)
    return {name: statistics.median(values) for name, values in spent.items()}


def measure_times(
    lengths: Sequence[int], kinds: Sequence[str], rounds: int, block: int | None
) -> dict[str, Any]:
    """Return CPU seconds and the memory that the compiler plans, by kind of attention."""
    compiled = {kind: gradient_program(kind, lengths, block) for kind in kinds}
    seconds = cpu_seconds(
        {kind: lambda built=built: built[0](*built[1]) for kind, built in compiled.items()}, rounds
    )
    return {
        kind: {
            "cpu_s": seconds[kind],
            "planned_bytes": compiled[kind][0].memory_analysis().temp_size_in_bytes,
        }
        for kind in kinds
    }


def measure_rss(
    lengths: Sequence[int], kinds: Sequence[str], rounds: int, block: int | None
) -> dict[str, Any]:
    """Return by how much a run makes the process larger, at its peak."""
    import jax

    (kind,) = kinds
    program, heads = gradient_program(kind, lengths, block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        jax.block_until_ready(program(*heads))
    return {kind: {"rss_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}}


def measure_peak(rounds: int) -> float:
    """Return the best rate of a float32 matrix product of the model's sizes, operations per CPU second."""
    import jax
    import jax.numpy as jnp

    best = 0.0
    for rows, inner, columns in ((1024, 576, 1536), (1024, 1536, 576), (1024, 1024, 1024)):
        left, right = jnp.ones((rows, inner)), jnp.ones((inner, columns))
        program = jax.jit(lambda a, b: a @ b).lower(left, right).compile()
        spent = cpu_seconds({"product": lambda p=program, a=left, b=right: p(a, b)}, rounds)["product"]
        best = max(best, 2 * rows * inner * columns / spent)
    return best


CHILDREN: dict[str, Callable[..., Any]] = {"times": measure_times, "rss": measure_rss, "peak": measure_peak}


def in_child(measure: str, **arguments: Any) -> Any:
    """Measure in a process of its own, on one core."""
    print(f"{measure} {arguments}", file=sys.stderr)
    environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", json.dumps([measure, arguments])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def compared(lengths: Sequence[int], rounds: int, block: int | None) -> dict[str, Any]:
    """Compare blockwise with dense on one row."""
    kinds = ("blockwise", "dense")
    found = in_child("times", lengths=lengths, kinds=kinds, rounds=rounds, block=block)
    for kind in kinds:
        found[kind] |= in_child("rss", lengths=lengths, kinds=[kind], rounds=1, block=block)[kind]
    ratios = {
        f"{name}_ratio": found["blockwise"][key] / found["dense"][key]
        for name, key in (("time", "cpu_s"), ("planned_memory", "planned_bytes"), ("rss", "rss_bytes"))
    }
    return {"lengths": list(lengths), **found, **ratios}


def share_of_step(rounds: int, block: int | None) -> dict[str, Any]:
    """Return what attention takes of a step of the 135M model that reaches the wanted utilization."""
    peak = in_child("peak", rounds=4 * rounds)
    step_s = 6 * NUM_WEIGHTS * 1024 / (TARGET_UTILIZATION * peak)
    shares = {}
    for name, lengths in (("1 segment", (1024,)), ("4 segments", (400, 300, 200, 124))):
        found = in_child("times", lengths=lengths, kinds=["blockwise", "dense"], rounds=rounds, block=block)
        shares[name] = {
            f"{kind}_share": NUM_LAYERS * found[kind]["cpu_s"] / step_s for kind in ("blockwise", "dense")
        } | {"cpu_s": found["blockwise"]["cpu_s"]}
    return {"matmul_peak_flops": peak, "step_s_at_target": step_s, "rows": shares}


def run(quick: bool, block: int | None) -> dict[str, Any]:
    """Measure everything."""
    rounds = 2 if quick else 7
    lengths = (1024, 4096) if quick else (1024, 2048, 4096, 8192, 16384)
    by_length = {
        str(length): in_child("times", lengths=[length], kinds=["blockwise"], rounds=1, block=block)[
            "blockwise"
        ]
        for length in lengths
    }
    rows = ["8 segments"] if quick else list(PACKED)
    packed = {name: compared(PACKED[name], rounds, block) for name in rows}
    goal = packed["8 segments"]
    return {
        "block_tokens": block,
        "packed_4096": packed,
        "by_length_1_segment": by_length,
        "model_135m_1024": share_of_step(rounds, block),
        "targets": {
            "time": {
                "limit": TARGET_TIME,
                "got": goal["time_ratio"],
                "met": goal["time_ratio"] <= TARGET_TIME,
            },
            "memory": {
                "limit": TARGET_MEMORY,
                "got": goal["rss_ratio"],
                "met": goal["rss_ratio"] <= TARGET_MEMORY,
            },
        },
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the tables of a page."""
    lines = [
        "| 4,096-token row | time | of dense's | planned memory | of dense's | process grew | of dense's |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in report["packed_4096"].items():
        mine = row["blockwise"]
        lines.append(
            f"| {name} | {mine['cpu_s'] * 1000:.0f} ms | {row['time_ratio']:.2f} "
            f"| {mine['planned_bytes'] / 1e6:.0f} MB | {row['planned_memory_ratio']:.3f} "
            f"| {mine['rss_bytes'] / 1e6:.0f} MB | {row['rss_ratio']:.3f} |"
        )
    lines += ["", "| row of one segment | time | memory planned | memory by token |", "|---|---|---|---|"]
    for length, row in report["by_length_1_segment"].items():
        planned = row["planned_bytes"]
        lines.append(
            f"| {int(length):,} tokens | {row['cpu_s'] * 1000:.0f} ms | {planned / 1e6:.1f} MB "
            f"| {planned / int(length) / 1000:.1f} kB |"
        )
    lines += ["", "| 1,024-token row, 30 layers | blockwise | dense |", "|---|---|---|"]
    for name, row in report["model_135m_1024"]["rows"].items():
        lines.append(f"| {name} | {row['blockwise_share']:.0%} | {row['dense_share']:.0%} |")
    return "\n".join(lines)


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
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    parser.add_argument("--quick", action="store_true", help="end within a minute or two")
    parser.add_argument("--block-tokens", type=int, help="of blockwise attention; else the default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        measure, arguments = json.loads(options.child)
        print(json.dumps(CHILDREN[measure](**arguments)))
        return
    report = run(options.quick, options.block_tokens)
    if options.write:
        options.write.write_text(with_tables(options.write.read_text(), markdown(report)))
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
