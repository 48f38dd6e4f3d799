"""The process that compiles: one job on standard input, messages on standard output.

It is a process of its own because libtpu takes a process for itself, because a compilation can neither be
interrupted nor timed from within, and because what it says on standard error is for nobody.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from forebay.learner.fit.chips import Topology, parse_topology
from forebay.learner.fit.estimates import Rates, read_estimate
from forebay.learner.fit.hlo import read_collectives
from forebay.learner.fit.jobs import Failure, Job, Message, Phase, Program, Sent
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.models.config import ModelConfig
from forebay.models.decode import decode_params, decode_step, init_cache
from forebay.models.mesh_axes import MESH_AXIS_NAMES
from forebay.models.params import abstract_params
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.build import build_objective
from forebay.objectives.settings import ObjectiveSettings

_EXHAUSTED = "RESOURCE_EXHAUSTED"
_MAX_REFUSAL = 4000


def main() -> None:
    """Compile what standard input asks for."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    for message in compile_job(job):
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


def compile_job(job: Job) -> Iterator[Message]:
    """Compile the programs of a job one after the other and yield what the compiler says of them."""
    topology = parse_topology(job.topology)
    config = ModelConfig.from_hf(job.model)
    yield Phase(f"describing {job.topology}")
    devices = _devices(topology)
    if len(devices) < topology.num_devices:
        yield Failure(f"{job.topology} has {len(devices)} devices here, not {topology.num_devices}")
        return
    for name in job.programs:
        yield Phase(f"tracing {name}")
        began_s = time.monotonic()
        lowered = _lower(name, job, config, topology, devices)
        yield Phase(f"compiling {name}")
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if _EXHAUSTED not in str(error):
                raise
            yield Program(name, time.monotonic() - began_s, refusal=str(error)[:_MAX_REFUSAL])
        else:
            yield describe(name, compiled, job, time.monotonic() - began_s)


def compute_settings(remat: str, platform: str) -> ComputeSettings:
    """Return how a model that is being sized is computed: bfloat16, and the attention of the platform."""
    attention = "splash" if platform == "tpu" else "blockwise"
    return ComputeSettings.model_validate(
        {"compute_dtype": "bfloat16", "remat": remat, "attention": attention}
    )


def _devices(topology: Topology) -> list[Any]:
    if topology.chip.platform == "cpu":
        return list(jax.devices("cpu"))[: topology.num_devices]
    # A v4 chip counts as one device only where its two cores work as one.
    options = {"chip_config_name": "megacore"} if topology.chip.name == "v4" else {}
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options)
    return list(described.devices)


def _lower(name: str, job: Job, config: ModelConfig, topology: Topology, devices: list[Any]) -> Any:
    if name == "decode":
        return _lower_decode(job, config, devices[0])
    programs = TrainPrograms(
        config,
        make_mesh(MeshSettings(**job.mesh), devices),
        OptimizerSettings(),
        build_objective(ObjectiveSettings()),
        compute_settings(job.remat, topology.chip.platform),
    )
    return programs.lower(name, (job.rows, job.length) if name == "accumulate" else None)


def _lower_decode(job: Job, config: ModelConfig, device: Any) -> Any:
    """Lower the generator's step for all slots, on one device."""
    whole = abstract_params(config, jnp.bfloat16)
    params = jax.eval_shape(functools.partial(decode_params, dtype=jnp.bfloat16), whole)
    cache = jax.eval_shape(lambda: init_cache(config, job.num_slots, job.length, jnp.bfloat16))
    slots = jax.ShapeDtypeStruct((job.num_slots,), jnp.int32)
    here = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        (params, cache, slots, slots),
    )
    step = jax.jit(
        lambda params, cache, tokens, lengths: decode_step(params, config, cache, tokens, lengths),
        donate_argnums=1,
    )
    return step.lower(*arguments)


def describe(name: str, compiled: Any, job: Job, compile_s: float) -> Program:
    """Return what the compiler says of a program.

    Args:
        name: Which one.
        compiled: A `jax.stages.Compiled`, or what has its `memory_analysis` and `as_text`.
        job: What it was compiled for.
        compile_s: Seconds that it took.
    """
    memory, text = compiled.memory_analysis(), _text_of(compiled)
    chips = parse_topology(job.topology)
    rates = Rates(chips.flops_per_s, chips.memory_bytes_per_s)
    estimate = read_estimate(text or "", rates, job.exchange_rounds)
    return Program(
        name=name,
        compile_s=compile_s,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        collectives=None if text is None else _collectives(text, job),
        cycles=estimate.cycles,
        kernel_s=estimate.kernel_s,
    )


def _text_of(compiled: Any) -> str | None:
    """Return the text of a program; None if this JAX cannot read what its compiler wrote.

    A libtpu newer than JAX may write instructions that JAX does not know; memory is known all the same.
    """
    try:
        text: str = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        return None
    return text


def _collectives(text: str, job: Job) -> tuple[Sent, ...]:
    sizes = {axis: job.mesh.get(axis, 1) for axis in MESH_AXIS_NAMES}
    found = read_collectives(text, sizes, job.exchange_rounds)
    return tuple(Sent(one.axis, one.kind, one.count, one.bytes) for one in found)


if __name__ == "__main__":
    main()
