"""`forebay fit`: whether a train step fits on chips, and how fast it could be, before they are rented."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.clock import SystemClock
from forebay.errors import ConfigError
from forebay.learner.fit.chips import GIB, Topology, parse_topology
from forebay.learner.fit.compiler import Compiler, cache_directory, check_compiler, versions
from forebay.learner.fit.jobs import Job
from forebay.learner.fit.memory import kept_on_generator
from forebay.learner.fit.plan import REMATS, Remat, parse_mesh
from forebay.learner.fit.report import Generator, Report, make_report, to_json, to_text
from forebay.learner.fit.search import Candidate, Judge, Wanted, search
from forebay.learner.fit.shapes import load_model
from forebay.learner.fit.verdict import HEADROOM, Verdict, by_arithmetic, by_compiler, needed_bytes
from forebay.learner.fit.work import exchange_rounds
from forebay.models.config import ModelConfig

_STEP = ("accumulate", "apply")


def fit(
    model: Annotated[
        str, typer.Argument(help="A directory with config.json, or a shape such as llama3-70b.")
    ],
    topology: Annotated[str, typer.Option(help="Chips: v5p:4x4x4, v6e:16x16, gpu:h100x8, cpu:8.")],
    mesh: Annotated[
        str | None, typer.Option(help="fsdp=16,tensor=4; by default the best is searched.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a step; by default as many as fit in one micro-batch."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a micro-batch; by default as many as fit.")
    ] = None,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a row.")] = 4096,
    remat: Annotated[
        str | None, typer.Option(help="none, elementwise, dots or full; by default the best.")
    ] = None,
    slots: Annotated[
        int, typer.Option(min=0, max=4096, help="Slots of a generator to size too; 0 for none.")
    ] = 0,
    price_per_chip_hour: Annotated[float | None, typer.Option(min=0.0, help="In any currency.")] = None,
    analytic: Annotated[bool, typer.Option("--analytic", help="Arithmetic only, no compiler.")] = False,
    max_compiles: Annotated[int, typer.Option(min=1, help="Most plans that are compiled.")] = 6,
    limit_s: Annotated[float, typer.Option(min=1.0, help="Longest time of one compilation.")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile the train step for chips that are not here: whether it fits, and how fast it could be.

    Meshes and remat policies are ranked by arithmetic, and the compiler judges the best of them until one
    fits with a tenth of the memory free. What it says is kept: the same question is answered at once later.
    Exit code 2: nothing fits.

    Examples:
        forebay fit llama3-8b --topology v5e:4x4
        forebay fit llama3-70b --topology v5p:4x4x4 --mesh fsdp=16,tensor=4 --json
        forebay fit llama3-405b --topology v5p:4x8x8 --tokens 1048576 --analytic
    """
    chips = parse_topology(topology)
    config = load_model(model)
    shape = None if mesh is None else parse_mesh(mesh, chips.num_devices)
    wanted = Wanted(length, shape, tokens, _remat(remat), rows)
    compiler = None
    if not analytic:
        check_compiler(chips)
        compiler = Compiler(cache_directory(), SystemClock(), _say, limit_s)
    outcome = search(config, chips, wanted, _judge(config, chips, compiler), max_compiles)
    report = make_report(
        model,
        config,
        chips,
        outcome,
        generator=_generator(config, chips, compiler, slots, length) if slots else None,
        price_per_chip_hour=price_per_chip_hour,
        versions=versions(),
    )
    typer.echo(to_json(report) if as_json else to_text(report))
    if not report.fits:
        raise _nothing_fits(report)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _remat(name: str | None) -> Remat | None:
    if name is None:
        return None
    for remat in REMATS:
        if remat == name:
            return remat
    raise ConfigError("no such remat policy", got=name, limit=", ".join(REMATS))


def _judge(config: ModelConfig, chips: Topology, compiler: Compiler | None) -> Judge:
    """Return what is asked about plans: the compiler, or arithmetic where there is none."""

    def judge(candidate: Candidate) -> Verdict:
        if compiler is None:
            return by_arithmetic(candidate.memory, chips, candidate.work.collectives)
        plan = candidate.plan
        _say(f"{chips.name}: {plan.describe()}")
        job = Job(
            config.to_hf(),
            chips.name,
            _STEP,
            plan.mesh.model_dump(),
            plan.rows,
            plan.length,
            plan.remat,
            exchange_rounds=exchange_rounds(config, plan),
        )
        programs = compiler.compile(job, chips)
        verdict = by_compiler(candidate.memory, programs, chips, plan.micro_batches)
        _say(f"  {'fits' if verdict.fits else 'does not fit'}: {verdict.explain()}")
        return verdict

    return judge


def _generator(
    config: ModelConfig, chips: Topology, compiler: Compiler | None, slots: int, length: int
) -> Generator:
    """Size the generator's decode step on one device; compiled only if weights and cache alone do fit."""
    weights, cache = kept_on_generator(config, slots, length)
    limit = chips.chip.memory_bytes
    peak, source, refused = weights + cache, "analytic", False
    if compiler is not None and peak < limit:
        job = Job(config.to_hf(), chips.name, ("decode",), {}, 1, length, "none", slots)
        decode = compiler.compile(job, chips)["decode"]
        peak, source, refused = needed_bytes(decode, peak), "compiler", decode.refusal is not None
    fits = not refused and peak <= (1 - HEADROOM) * limit
    return Generator(source, slots, length, weights, cache, peak, limit, fits)


def _nothing_fits(report: Report) -> ConfigError:
    limit = f"{(1 - HEADROOM) * report.limit_bytes / GIB:.2f} GiB per chip, so that a tenth stays free"
    return ConfigError(
        f"{report.model} does not fit on {report.topology}: the best plan {report.explanation}",
        limit=limit,
        remedy="Take more or larger chips, or lower --tokens or --length.",
    )
