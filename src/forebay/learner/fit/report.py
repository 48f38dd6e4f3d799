"""What `forebay fit` prints: one JSON object, or a table for people."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from forebay.learner.fit.chips import GIB, Topology
from forebay.learner.fit.memory import num_parameters
from forebay.learner.fit.roofline import ASSUMPTIONS
from forebay.learner.fit.search import Candidate, Outcome
from forebay.learner.fit.verdict import HEADROOM, Verdict
from forebay.learner.fit.work import Collective, active_parameters
from forebay.models.config import ModelConfig

_MILLION = 1_000_000
_HOUR_S = 3600
_BY = {"compiler": "by the compiler", "analytic": "by arithmetic"}


class BytesPerChip(msgspec.Struct, frozen=True):
    """Memory of one chip by what it is for; `headroom` is what is left of the limit."""

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    temporary: int
    peak: int
    headroom: int


class Times(msgspec.Struct, frozen=True):
    """Least seconds of a step by what is waited for."""

    compute_s: float
    memory_s: float
    network_s: dict[str, float]


class Generator(msgspec.Struct, frozen=True):
    """Memory of the generator's decode step on one device: bfloat16 weights and a cache of slots.

    Attributes:
        source: Whose word the peak is: `compiler` or `analytic`.
        num_slots: Sequences that are decoded at the same time.
        length: Tokens that each has room for.
        weight_bytes: Of the weights.
        cache_bytes: Of keys and values.
        peak_bytes: With all that lives while a token is decoded.
        limit_bytes: What one device has.
        fits: Whether it fits with a tenth free.
    """

    source: str
    num_slots: int
    length: int
    weight_bytes: int
    cache_bytes: int
    peak_bytes: int
    limit_bytes: int
    fits: bool


class Tried(msgspec.Struct, frozen=True):
    """A plan that was judged."""

    plan: str
    fits: bool
    peak_bytes: int
    compile_s: float
    refusal: str | None


class Report(msgspec.Struct, frozen=True):
    """All that is known of a model on a topology; the JSON object; `docs/reference/fit.md` explains it."""

    model: str
    topology: str
    chips: int
    devices: int
    source: str
    mesh: dict[str, int]
    remat: str
    rows: int
    length: int
    micro_batches: int
    tokens_per_step: int
    params: int
    active_params: int
    bytes_per_chip: BytesPerChip
    limit_bytes: int
    arithmetic_peak_bytes: int
    fits: bool
    explanation: str
    flops_per_step: float
    step_s_roofline: float
    bound: str
    roofline: Times
    compiler_computing_s: float | None
    assumptions: tuple[str, ...]
    tokens_per_s: float
    flops_of_peak: float
    cost_per_step: float | None
    cost_per_million_tokens: float | None
    collectives_source: str
    collectives: tuple[Collective, ...]
    generator: Generator | None
    compile_s: float
    tried: tuple[Tried, ...]
    versions: dict[str, str]


def make_report(
    model: str,
    config: ModelConfig,
    topology: Topology,
    outcome: Outcome,
    *,
    generator: Generator | None = None,
    price_per_chip_hour: float | None = None,
    versions: dict[str, str] | None = None,
) -> Report:
    """Put together what a search found.

    Args:
        model: As it was asked for.
        config: The model.
        topology: The chips.
        outcome: What the search found.
        generator: What is known of decoding; None if it was not asked for.
        price_per_chip_hour: In any currency; costs are None without it.
        versions: Of what judged.
    """
    candidate, verdict = outcome.candidate, outcome.verdict
    plan, work, line = candidate.plan, candidate.work, candidate.roofline
    price = price_per_chip_hour
    per_step = None if price is None else price * topology.num_chips * line.step_s / _HOUR_S
    return Report(
        model=model,
        topology=topology.name,
        chips=topology.num_chips,
        devices=topology.num_devices,
        source=verdict.source,
        mesh=plan.mesh.model_dump(),
        remat=plan.remat,
        rows=plan.rows,
        length=plan.length,
        micro_batches=plan.micro_batches,
        tokens_per_step=plan.tokens,
        params=num_parameters(config),
        active_params=num_parameters(config) - _idle_parameters(config),
        bytes_per_chip=_bytes_per_chip(verdict, topology),
        limit_bytes=topology.chip.memory_bytes * topology.chip.devices_per_chip,
        arithmetic_peak_bytes=candidate.memory.peak * topology.chip.devices_per_chip,
        fits=verdict.fits,
        explanation=verdict.explain(),
        flops_per_step=work.model_flops,
        step_s_roofline=line.step_s,
        bound=line.bound,
        roofline=Times(line.compute_s, line.memory_s, dict(line.network_s)),
        compiler_computing_s=verdict.computing_s,
        assumptions=ASSUMPTIONS,
        tokens_per_s=plan.tokens / line.step_s,
        flops_of_peak=work.model_flops / (topology.flops_per_s * topology.num_devices * line.step_s),
        cost_per_step=per_step,
        cost_per_million_tokens=None if per_step is None else per_step / plan.tokens * _MILLION,
        collectives_source="analytic" if verdict.collectives is None else verdict.source,
        collectives=work.collectives if verdict.collectives is None else verdict.collectives,
        generator=generator,
        compile_s=verdict.compile_s,
        tried=tuple(_tried(*pair) for pair in outcome.tried),
        versions=versions or {},
    )


def to_json(report: Report) -> str:
    """Return the report as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def to_text(report: Report) -> str:
    """Return the report for people."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items() if size > 1) or "one device"
    fits = "fits" if report.fits else f"does NOT fit with {HEADROOM:.0%} free"
    judge = _BY[report.source] + ("" if report.source == "compiler" else " only, not compiled")
    yield f"{report.model} on {report.topology} ({report.chips} chips): {fits}, {judge}"
    yield f"  {report.params / 1e9:.2f} B parameters, {report.active_params / 1e9:.2f} B of them active"
    yield f"  mesh {mesh}; remat {report.remat}"
    yield (
        f"  {report.tokens_per_step:,} tokens a step: {report.micro_batches} x {report.rows} rows"
        f" of {report.length:,}"
    )
    yield f"memory of a chip, GiB of {report.limit_bytes / GIB:.2f}"
    for name in BytesPerChip.__struct_fields__:
        yield f"  {name:<14}{getattr(report.bytes_per_chip, name) / GIB:9.2f}"
    if report.source == "compiler":
        said = report.arithmetic_peak_bytes
        error = said / report.bytes_per_chip.peak - 1
        yield f"  arithmetic said{said / GIB:8.2f} at the peak, {error:+.1%}"
    yield f"a step at best (roofline); {report.flops_per_step:.3g} operations, recomputation left out"
    yield f"  {'compute':<14}{report.roofline.compute_s:9.3f} s"
    yield f"  {'memory':<14}{report.roofline.memory_s:9.3f} s"
    for axis, seconds in report.roofline.network_s.items():
        yield f"  {axis:<14}{seconds:9.3f} s"
    if report.compiler_computing_s is not None:
        yield f"  the compiler thinks that computing and memory take {report.compiler_computing_s:.3f} s"
    yield (
        f"  {report.step_s_roofline:.3f} s, {report.bound} bound: {report.tokens_per_s:,.0f} tokens/s,"
        f" {report.flops_of_peak:.0%} of peak"
    )
    if report.cost_per_step is not None and report.cost_per_million_tokens is not None:
        each = f"{report.cost_per_million_tokens:.3f} a million tokens"
        yield f"  cost {report.cost_per_step:.4f} a step, {each}"
    yield "  assuming that:"
    yield from (f"    {one}" for one in report.assumptions)
    yield f"collectives of a step, and what a device sends, {_BY[report.collectives_source]}"
    for one in report.collectives:
        yield f"  {one.axis:<14}{one.kind:<20}{one.count:8,d} times {one.bytes / GIB:10.3f} GiB"
    if report.generator is not None:
        yield _decoding(report.generator)


def _decoding(found: Generator) -> str:
    fits = "fits" if found.fits else "does NOT fit"
    return (
        f"decoding {found.num_slots} slots of {found.length:,} tokens on one device: {fits},"
        f" {_BY[found.source]}: {found.peak_bytes / GIB:.2f} of {found.limit_bytes / GIB:.2f} GiB"
        f" (weights {found.weight_bytes / GIB:.2f}, cache {found.cache_bytes / GIB:.2f})"
    )


def _idle_parameters(config: ModelConfig) -> int:
    """Return the number of parameters that a token does not meet: of experts that it does not go to."""
    from_table = active_parameters(config, every_expert=True)[0]
    return from_table - active_parameters(config)[0]


def _bytes_per_chip(verdict: Verdict, topology: Topology) -> BytesPerChip:
    memory, devices = verdict.memory, topology.chip.devices_per_chip
    return BytesPerChip(
        parameters=memory.parameters * devices,
        optimizer=memory.optimizer * devices,
        gradients=memory.gradients * devices,
        activations=memory.activations * devices,
        temporary=memory.temporary * devices,
        peak=memory.peak * devices,
        headroom=(verdict.limit_bytes - memory.peak) * devices,
    )


def _tried(candidate: Candidate, verdict: Verdict) -> Tried:
    refusal = None if verdict.refusal is None else verdict.refusal.splitlines()[0]
    return Tried(candidate.plan.describe(), verdict.fits, verdict.memory.peak, verdict.compile_s, refusal)
