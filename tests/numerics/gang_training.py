"""One process of a learner of several: trains the steps of `training`, saves, and tells its numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import msgspec
import numpy as np

from forebay.clock import SystemClock
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.gang.gathering import Gathering
from forebay.learner.gang.joining import Place, join
from forebay.learner.programs import TrainPrograms
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import annotations_of, build_objective
from forebay.trajectory import PolicyVersion
from tests.numerics import training
from tests.unit.models import tiny

STEPS = 3
CURSOR = CheckpointCursor(run_id="run", version=PolicyVersion(0, STEPS))


class Report(msgspec.Struct):
    """What one process found.

    Args:
        grad_norms: Of every step.
        logprobs: Sum over all rows, under the last parameters.
        params: Digest of the gathered parameters; empty where they are not gathered.
        devices: Devices of this process, and of all.
    """

    grad_norms: list[float]
    logprobs: float
    params: str
    devices: tuple[int, int]


def main(process: int, mesh: MeshSettings, num_processes: int, port: int, directory: Path) -> Report:
    """Take part in a training; return what this process found."""
    place = Place(process, num_processes, "127.0.0.1", port, "")
    with join(place, "run", "settings", SystemClock(), start_s=120.0, silent_s=60.0) as gang:
        built = TrainPrograms(
            tiny.CONFIG,
            make_mesh(mesh),
            training.OPTIMIZER,
            build_objective(training.OBJECTIVE),
            training.COMPUTE,
            annotations_of(training.OBJECTIVE),
        )
        built.warm_up([(4, training.WIDTH)], scored_dtypes=("float32",))
        state = built.init_state(tiny.params())
        gang.barrier("compiled")
        state, stats = training.take_steps(built, state, training.batches(STEPS))
        gathering = Gathering(gang, built.abstract_state.params)
        gathered = gathering.start(state.params).result()
        gathering.close()
        checkpointer = Checkpointer(directory, durability="os", background=True, peers=gang)
        checkpointer.save(state, CURSOR)
        restored = checkpointer.restore_newest(built.abstract_state)
        checkpointer.close()
        assert restored is not None
        scored = built.logprobs(restored.state.params, built.place(training.ROWS))
        return Report(
            [float(step.grad_norm) for step in stats],
            float(np.asarray(scored, np.float64).sum()),
            "" if gathered is None else training.digest(gathered),
            (jax.local_device_count(), jax.device_count()),
        )


if __name__ == "__main__":
    number, processes, port, data, fsdp = map(int, sys.argv[1:6])
    found = main(number, MeshSettings(data=data, fsdp=fsdp), processes, port, Path(sys.argv[6]))
    sys.stdout.write(msgspec.json.encode(found).decode())
