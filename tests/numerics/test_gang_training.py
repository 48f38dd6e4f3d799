"""A learner of several processes makes the numbers and the checkpoints of one process with the same mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from forebay.cli.roles import free_port
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import read_manifest, step_directory
from forebay.learner.train_step import TrainState
from forebay.models.settings import MeshSettings
from tests.numerics import training
from tests.numerics.gang_training import CURSOR, STEPS, Report
from tests.unit.models import tiny

ROOT = Path(__file__).parents[2]
# Each process has one device; the same code path as in this process, where flags give it eight.
FLAGS = "--xla_cpu_multi_thread_eigen=false"


class Case(NamedTuple):
    processes: int
    mesh: MeshSettings

    @property
    def exact(self) -> bool:
        """Whether sums over processes have one order only."""
        return self.processes == 2


CASES = [
    pytest.param(Case(2, MeshSettings(fsdp=2)), id="two"),
    pytest.param(Case(4, MeshSettings(data=2, fsdp=2)), id="four", marks=pytest.mark.soak),
]


def run(case: Case, directory: Path) -> list[Report]:
    port = free_port(2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.numerics.gang_training"]
            + [
                str(word)
                for word in (number, case.processes, port, case.mesh.data, case.mesh.fsdp, directory)
            ],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": FLAGS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(case.processes)
    ]
    ends = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * case.processes, ends
    return [msgspec.json.decode(out.splitlines()[-1], type=Report) for out, _ in ends]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_several_processes_equal_one_with_the_same_mesh(case: Case, tmp_path: Path) -> None:
    built = training.programs(case.mesh)
    expected, stats = training.take_steps(built, built.init_state(tiny.params()), training.batches(STEPS))
    reports = run(case, tmp_path)
    assert [report.devices for report in reports] == [(1, case.processes)] * case.processes
    for report in reports:
        np.testing.assert_allclose(report.grad_norms, [s.grad_norm for s in stats], rtol=1e-6)
        assert report.logprobs == reports[0].logprobs
    restored = restored_here(tmp_path)
    assert training.relative_error(restored, expected) <= 1e-6
    assert int(restored.step) == STEPS
    assert [report.params for report in reports] == [
        training.digest(restored.params),
        *[""] * (len(reports) - 1),
    ]
    if case.exact:
        assert training.digest(restored) == training.digest(expected)
    files = {part.file for part in read_manifest(step_directory(tmp_path, STEPS)).slices}
    assert len(files) == case.processes


def restored_here(directory: Path) -> TrainState:
    """Return the state that several processes saved, on one device of this one."""
    restored = Checkpointer(directory).restore_newest(training.programs().abstract_state)
    assert restored is not None
    assert restored.cursor == CURSOR
    state: TrainState = restored.state
    return state
