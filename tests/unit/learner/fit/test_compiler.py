from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from forebay.clock import SystemClock
from forebay.errors import ConfigError, PeerFailedError
from forebay.learner.fit.chips import parse_topology
from forebay.learner.fit.compiler import Compiler, check_compiler, versions
from forebay.learner.fit.jobs import Job
from forebay.learner.fit.memory import estimate_memory, kept_on_generator
from forebay.learner.fit.plan import Plan
from forebay.learner.fit.verdict import by_compiler
from forebay.models.config import ModelConfig
from forebay.models.experts import Experts
from forebay.models.settings import ComputeSettings, MeshSettings

CPU = parse_topology("cpu:8")
TINY = ModelConfig(256, 250, 64, 128, 2, 4, 2, 16, 512, tie_word_embeddings=False)
# Pallas kernels want heads of whole lanes.
TINY_FOR_TPU = ModelConfig(256, 250, 128, 256, 2, 4, 2, 128, 512, tie_word_embeddings=False)
MIXED_FOR_TPU = dataclasses.replace(
    TINY_FOR_TPU, experts=Experts(8, 2, 128), family="qwen3_moe", head_norms=True
)
PROGRAMS = ("accumulate", "apply")
MESH = MeshSettings(data=2, fsdp=2, tensor=2)
COMPUTE = ComputeSettings(compute_dtype="bfloat16")


def _job(
    config: ModelConfig,
    topology: str,
    mesh: MeshSettings,
    rows: int = 8,
    programs: tuple[str, ...] = PROGRAMS,
) -> Job:
    return Job(config.to_hf(), topology, programs, mesh.model_dump(), rows, 128, "full")


@pytest.mark.timeout(400)
def test_programs_are_compiled_once_and_their_memory_is_told_by_category(tmp_path: Path) -> None:
    told: list[str] = []
    compiler = Compiler(tmp_path, SystemClock(), told.append, 380.0)
    job = _job(TINY, "cpu:8", MESH, programs=(*PROGRAMS, "decode"))
    programs = compiler.compile(job, CPU)
    estimate = estimate_memory(TINY, Plan(MESH, 8, 128, 1, "full"), COMPUTE)
    verdict = by_compiler(estimate, programs, CPU, 1)
    assert verdict.fits and verdict.source == "compiler"
    memory = verdict.memory
    assert memory.peak == memory.resident + memory.activations + memory.temporary
    assert memory.temporary > 0
    # Parameters and accumulator, the rows and a few scalars.
    arguments = programs["accumulate"].argument_bytes - estimate.parameters - estimate.gradients
    assert 0 < arguments < 8 * 128 * 4 * 9
    found = {(one.axis, one.kind) for one in verdict.collectives}
    assert {("fsdp", "all-gather"), ("tensor", "all-gather")} <= found
    assert any("compiling accumulate" in line for line in told)
    # Weights, and one slot's keys and values of 128 tokens: two blocks, two heads of 16, two bytes.
    weights, cache = kept_on_generator(TINY, 1, 128)
    assert cache == 2 * 2 * 2 * 16 * 128 * 2 == programs["decode"].alias_bytes
    assert 0 < programs["decode"].argument_bytes - weights - cache < 64

    hurried = Compiler(tmp_path, SystemClock(), told.append, 0.0)
    assert hurried.compile(job, CPU) == programs, "and no process, which has no time, was asked"
    # The optimizer's program is the same for other rows.
    other = msgspec.structs.replace(job, rows=16, programs=("apply",))
    assert hurried.compile(other, CPU) == {"apply": programs["apply"]}
    for kept in tmp_path.iterdir():
        kept.write_text("{")
    with pytest.raises(PeerFailedError, match="took too long"):
        hurried.compile(job, CPU)


@pytest.mark.timeout(300)
def test_what_fails_in_the_process_is_said_in_one_line_and_what_came_before_is_kept(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, SystemClock(), lambda line: None, 280.0)
    job = _job(TINY, "cpu:8", MESH, rows=3, programs=("apply", "accumulate"))
    with pytest.raises(PeerFailedError, match=r"3 rows x 128 tokens cannot be split"):
        compiler.compile(job, CPU)
    hurried = Compiler(tmp_path, SystemClock(), lambda line: None, 0.0)
    (apply,) = hurried.compile(msgspec.structs.replace(job, programs=("apply",)), CPU).values()
    assert apply.argument_bytes > 0
    assert len(list(tmp_path.iterdir())) == 1, "a failure is not kept"


def test_a_compiler_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, SystemClock(), lambda line: None, 0.0)
    with pytest.raises(PeerFailedError, match=r"took too long .*limit 0 s.*--limit-s"):
        compiler.compile(_job(TINY, "cpu:8", MESH), CPU)


def test_what_cannot_be_compiled_here_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--analytic"):
        check_compiler(parse_topology("gpu:h100x8"))
    check_compiler(CPU)
    if "libtpu" not in versions():
        with pytest.raises(ConfigError, match="pip install libtpu"):
            check_compiler(parse_topology("v5e:2x2"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("config", "topology", "mesh", "sent"),
    [
        (
            TINY_FOR_TPU,
            "v5e:2x2",
            MeshSettings(fsdp=2, tensor=2),
            {("fsdp", "reduce-scatter"), ("tensor", "all-gather")},
        ),
        (TINY_FOR_TPU, "v5p:2x2x1", MeshSettings(fsdp=2, context=2), {("context", "collective-permute")}),
        (MIXED_FOR_TPU, "v6e:2x2", MeshSettings(fsdp=2, expert=2), {("expert", "all-to-all")}),
    ],
    ids=["dense", "long rows", "experts"],
)
def test_the_compiler_for_tpus_takes_a_tiny_model(
    tmp_path: Path,
    config: ModelConfig,
    topology: str,
    mesh: MeshSettings,
    sent: set[tuple[str, str]],
) -> None:
    pytest.importorskip("libtpu")
    chips, job = parse_topology(topology), _job(config, topology, mesh, programs=(*PROGRAMS, "decode"))
    programs = Compiler(tmp_path, SystemClock(), lambda line: None, 580.0).compile(job, chips)
    estimate = estimate_memory(config, Plan(mesh, 8, 128, 1, "full"), COMPUTE)
    verdict = by_compiler(estimate, programs, chips, 1)
    assert verdict.fits and verdict.computing_s > 0
    assert sent <= {(one.axis, one.kind) for one in verdict.collectives}
    weights, cache = kept_on_generator(config, 1, 128)
    assert weights + cache <= programs["decode"].peak_bytes < 2 * (weights + cache) + (64 << 20)
