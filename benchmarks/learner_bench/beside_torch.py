"""The same step by transformers and torch on identical rows: one unpacked sequence each, float32, one thread.

Both sides begin with the same weights, written as a Hugging Face directory and loaded from it, and take the
same tokens; that they compute the same is seen by their losses. Steps take turns, on the same core; the one
that waits computes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.learner_bench.measuring import Spread, Timed, in_turns, ratios
from benchmarks.learner_bench.peak import MatmulPeak
from benchmarks.learner_bench.shapes import MODELS, Case
from benchmarks.learner_bench.step import (
    BesidePeak,
    TrainStep,
    Utilization,
    process_peak_bytes,
    rows_of,
    utilization_of,
)
from forebay.launch.placement import TUNABLES_VARIABLE
from forebay.models.checkpoint_io import save_model
from forebay.models.hf import to_hf_tensors
from forebay.models.params import init_params
from forebay.models.settings import ComputeSettings

_CHILD = Path(__file__).with_name("torch_step.py")
# For the other side what `keep_freed_memory` does for this one.
_KEEPS_FREED_MEMORY = (
    "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
)


class Beside(NamedTuple):
    """Both sides of the comparison.

    Attributes:
        rows: (rows, tokens of a row).
        versions: Of torch and transformers.
        cpu_s: CPU seconds of each side's steps, in order.
        speed_of_torch: Time of torch's step over that of ours, round by round, on the wall and in CPU time:
            above 1 ours is faster.
        losses: Of each side at the first step: from the same weights and rows.
        process_bytes: The largest size that each process had.
    """

    rows: tuple[int, int]
    versions: dict[str, str]
    cpu_s: dict[str, list[float]]
    speed_of_torch: dict[str, Spread]
    losses: dict[str, float]
    process_bytes: dict[str, int]


class TorchStep:
    """A child process that takes a step when asked.

    Args:
        child: The process, which is ready.

    Attributes:
        last: Its last answer.
    """

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.last: dict[str, Any] = self._answer()
        self.versions = {name: self.last[name] for name in ("torch", "transformers")}

    def once(self) -> Timed:
        """Have it take a step; return what it took there."""
        assert self._child.stdin is not None
        self._child.stdin.write("step\n")
        self._child.stdin.flush()
        self.last = self._answer()
        return Timed(self.last["wall_s"], self.last["cpu_s"])

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with torch has ended, code {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare(
    case: Case, python: str, scratch: Path, peak: MatmulPeak, compute: ComputeSettings
) -> tuple[Beside, Utilization]:
    """Let both sides take turns, and the peak with ours.

    Args:
        case: One segment, so that the row is unpacked.
        python: One that has torch and transformers.
        scratch: An empty directory.
        peak: Of this machine.
        compute: Of our side.
    """
    config, bucket = MODELS[case.model], case.bucket
    before = process_peak_bytes()
    rows = rows_of(bucket, [case.segments], config.vocab_size)
    params = jax.device_get(init_params(config, jax.random.key(0)))
    save_model(scratch / "model", config, to_hf_tensors(params, config))
    np.save(scratch / "tokens.npy", rows.tokens)
    mine = TrainStep(config, bucket, rows, params, compute)
    with torch_child(python, scratch) as theirs:
        mine.once()
        theirs.once()
        losses = {"forebay": mine.loss, "torch": theirs.last["loss"]}
        ours = BesidePeak(mine, peak)
        taken = in_turns({"forebay": ours.once, "torch": theirs.once}, case.rounds)
        beside = Beside(
            rows=tuple(bucket),
            versions=theirs.versions,
            cpu_s={name: [one.cpu_s for one in times] for name, times in taken.items()},
            speed_of_torch=ratios(taken["torch"], taken["forebay"]),
            losses=losses,
            process_bytes={"forebay": process_peak_bytes(), "torch": theirs.last["process_bytes"]},
        )
    return beside, utilization_of(case, mine, ours, max(peak.best.values()), before)


@contextmanager
def torch_child(python: str, scratch: Path) -> Iterator[TorchStep]:
    """Start the other side on this process's core; it ends with the block."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    tunables = (environment.get(TUNABLES_VARIABLE), _KEEPS_FREED_MEMORY)
    environment[TUNABLES_VARIABLE] = ":".join(filter(None, tunables))
    command = [python, str(_CHILD), str(scratch / "model"), str(scratch / "tokens.npy")]
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        try:
            yield TorchStep(child)
        finally:
            child.kill()
