"""Compiles a train step for TPUs that are not there, with and without adapters; prints its memory by chip.

    python scripts/lora_memory.py llama3-8b v5e:2x2 16   # shape, topology, rank; needs libtpu

Parameters are split over all chips, each of which has a row of 2,048 tokens; bfloat16, everything recomputed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import jax
from jax.experimental import topologies

from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.models.config import ModelConfig
from forebay.models.settings import ComputeSettings, LoraSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import build_objective

SHAPES = Path(__file__).parents[1] / "src" / "forebay" / "assets" / "shapes"
COMPUTE = ComputeSettings(compute_dtype="bfloat16", remat="full", attention="splash")
NUM_TOKENS = 2048


def main(shape: str, topology: str, rank: str) -> None:
    """Compile both programs of a step, with adapters of a rank and without any."""
    config = ModelConfig.from_hf(json.loads((SHAPES / f"{shape}.json").read_text()))
    devices = list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    mesh = make_mesh(MeshSettings(fsdp=len(devices)), devices)
    objective = build_objective(ObjectiveSettings())
    for lora in (LoraSettings(rank=int(rank)), None):
        programs = TrainPrograms(config, mesh, OptimizerSettings(), objective, COMPUTE, lora=lora)
        for name, rows in (("accumulate", (len(devices), NUM_TOKENS)), ("apply", None)):
            label = f"{'adapters' if lora else 'whole model'}, {name}"
            try:
                memory = programs.lower(name, rows).compile().memory_analysis()
            except jax.errors.JaxRuntimeError as error:
                print(f"{label}: refused: {str(error).splitlines()[0]}", flush=True)
                continue
            arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
            print(
                f"{label}: {arguments / 2**30:.2f} GiB held, {temporary / 2**30:.2f} GiB temporary",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:4])
