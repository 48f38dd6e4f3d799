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
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import TrainState
from forebay.models.settings import MeshSettings
from tests.numerics import training
from tests.numerics.gang_training import CONFIGS, CURSOR, STEPS, Kind, Report, programs
from tests.unit.models import tiny

ROOT = Path(__file__).parents[2]
# Each process has one device; the same code path as in this process, where flags give it eight.
FLAGS = "--xla_cpu_multi_thread_eigen=false"


class Case(NamedTuple):
    processes: int
    mesh: MeshSettings
    kind: Kind = "dense"

    @property
    def exact(self) -> bool:
        """Whether sums over processes have one order only."""
        return self.processes == 2 and self.kind == "dense"

    @property
    def most(self) -> float:
        """Largest difference from one process, relative."""
        return 1e-6 if self.kind == "dense" else 1e-5


CASES = [
    pytest.param(Case(2, MeshSettings(fsdp=2)), id="two"),
    *(
        pytest.param(case, id=name, marks=pytest.mark.soak)
        for name, case in {
            "four": Case(4, MeshSettings(data=2, fsdp=2)),
            "replicas": Case(4, MeshSettings(data=4)),
            "within a row": Case(4, MeshSettings(context=2, tensor=2)),
            "experts": Case(4, MeshSettings(fsdp=2, expert=2), "experts"),
            "wide experts": Case(4, MeshSettings(tensor=2, expert=2), "experts"),
        }.items()
    ),
]


def run(case: Case, directory: Path) -> list[Report]:
    port = free_port(2)
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.numerics.gang_training"),
                *(str(number), str(case.processes), str(port)),
                *(case.mesh.model_dump_json(), str(directory), case.kind),
            ],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": FLAGS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(case.processes)
    ]
    ends = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * case.processes, ends
    return [msgspec.json.decode(out.splitlines()[-1], type=Report) for out, _ in ends]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("case", CASES)
def test_several_processes_equal_one_with_the_same_mesh(case: Case, tmp_path: Path) -> None:
    built, params = alone(case), tiny.params(CONFIGS[case.kind])
    expected, stats = training.take_steps(built, built.init_state(params), training.batches(STEPS))
    reports = run(case, tmp_path)
    assert [report.devices for report in reports] == [(1, case.processes)] * case.processes
    for report in reports:
        np.testing.assert_allclose(report.grad_norms, [s.grad_norm for s in stats], rtol=case.most)
        assert report.logprobs == reports[0].logprobs
    restored = restored_here(tmp_path, case.kind)
    assert training.relative_error(restored, expected) <= case.most
    assert int(restored.step) == STEPS
    assert [report.params for report in reports] == [
        training.digest(restored.params),
        *[""] * (len(reports) - 1),
    ]
    if case.exact:
        assert training.digest(restored) == training.digest(expected)
    files = {part.file for part in read_manifest(step_directory(tmp_path, STEPS)).slices}
    # Of replicas, one alone holds what is saved.
    assert len(files) == case.processes // case.mesh.data


def alone(case: Case) -> TrainPrograms:
    """Return compiled programs of this process with the same mesh."""
    if case.kind == "dense":
        return training.programs(case.mesh)  # which other tests have too
    built = programs(case.kind, case.mesh)
    built.warm_up([(4, training.WIDTH)])
    return built


def restored_here(directory: Path, kind: Kind) -> TrainState:
    """Return the state that several processes saved, on one device of this one."""
    template = programs(kind, training.SINGLE).abstract_state
    restored = Checkpointer(directory).restore_newest(template)
    assert restored is not None
    assert restored.cursor == CURSOR
    state: TrainState = restored.state
    return state
