"""The fastest plan that fits: arithmetic ranks all of them, and the compiler is asked about the best.

What the compiler says of one plan corrects the estimate of the others with the same remat policy, so that few
have to be compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigError
from forebay.learner.fit.chips import Topology
from forebay.learner.fit.memory import Memory, estimate_memory
from forebay.learner.fit.plan import REMATS, Plan, Remat, check_length, check_plan, refusal
from forebay.learner.fit.roofline import Roofline, roofline
from forebay.learner.fit.verdict import HEADROOM, Verdict, by_arithmetic
from forebay.learner.fit.work import Work, count_work
from forebay.models.config import ModelConfig
from forebay.models.settings import ComputeSettings, MeshSettings

# Rows that a shard may have: all numbers of three bits, so that the next is at most a quarter more.
_ROWS_OF_SHARD: Final = tuple(sorted({lead << bit for lead in (4, 5, 6, 7) for bit in range(5)} | {1, 2, 3}))
# Rows that one device has room for; beyond, they are split over a context axis too.
_LONG_ROW: Final = 32_768
_MAX_TENSOR: Final = 32
# A refusal that does not say how much is missing.
_UNKNOWN_EXCESS: Final = 1.5
# Rooflines this close count as equal.
_SAME: Final = 0.02
Judge = Callable[["Candidate"], Verdict]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Args:
        length: Tokens of a row.
        mesh: The mesh; None to have meshes searched.
        tokens: Tokens of a step; None for as many as a single micro-batch can have.
        remat: The remat policy; None to have all tried.
        rows: Rows of a micro-batch; None for as many as fit.
    """

    length: int
    mesh: MeshSettings | None = None
    tokens: int | None = None
    remat: Remat | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and what arithmetic says of it."""

    plan: Plan
    memory: Memory
    work: Work
    roofline: Roofline

    @property
    def rank(self) -> tuple[float, float]:
        """Less is better: least seconds of a token, then all that could be waited for."""
        line = self.roofline
        waits = line.compute_s + line.memory_s + sum(seconds for _, seconds in line.network_s)
        step = line.step_s / self.plan.tokens
        return step, waits / self.plan.tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Args:
        candidate: The best plan that fits; if none does, the one that needs least.
        verdict: What was said of it.
        tried: All plans that were judged, in order.
    """

    candidate: Candidate
    verdict: Verdict
    tried: tuple[tuple[Candidate, Verdict], ...]


def search(
    config: ModelConfig, topology: Topology, wanted: Wanted, judge: Judge, max_judged: int = 6
) -> Outcome:
    """Find the fastest plan that fits with a tenth of the memory free.

    Args:
        config: The model.
        topology: The chips.
        wanted: What is asked for.
        judge: Says whether a plan fits; slow.
        max_judged: Most plans that it is asked about.

    Raises:
        ConfigError: No plan divides the model, the rows and the tokens.
    """
    ranked = rank_candidates(config, topology, wanted)
    limit = (1 - HEADROOM) * topology.chip.memory_bytes
    tried: dict[Candidate, Verdict] = {}
    excess: dict[Remat, float] = {}

    def expected(candidate: Candidate) -> float:
        memory = candidate.memory
        return memory.resident + excess.get(candidate.plan.remat, 1.0) * (memory.peak - memory.resident)

    while len(tried) < max_judged:
        hopeful = (one for one in ranked if _may_fit(one, tried, expected(one) <= limit))
        best = next(hopeful, None)
        if best is None:
            best = min((one for one in ranked if one not in tried), key=expected, default=None)
            if best is None or best.memory.resident > limit or any(one.fits for one in tried.values()):
                break
        if best in tried:
            break
        verdict = judge(best)
        tried[best] = verdict
        excess[best.plan.remat] = _excess(best, verdict, excess.get(best.plan.remat, 1.0))
    return _outcome(ranked, tried, topology)


def rank_candidates(config: ModelConfig, topology: Topology, wanted: Wanted) -> list[Candidate]:
    """Return all plans that can be compiled, the fastest by arithmetic first.

    Raises:
        ConfigError: There is none, or rows are longer than the model's context.
    """
    check_length(config, wanted.length)
    compute = ComputeSettings(compute_dtype="bfloat16")
    plans = list(_plans(config, topology, wanted))
    if not plans:
        raise _no_plan(config, topology, wanted)
    candidates = []
    for plan in plans:
        work = count_work(config, plan)
        line = roofline(work, plan, topology)
        candidates.append(Candidate(plan, estimate_memory(config, plan, compute), work, line))
    fastest = min(one.rank[0] for one in candidates)

    def order(one: Candidate) -> tuple[float, ...]:
        step, waits = one.rank
        return (max(0.0, step / fastest - 1 - _SAME), waits, one.memory.peak)

    return sorted(candidates, key=order)


def meshes(config: ModelConfig, num_devices: int, length: int) -> Iterator[MeshSettings]:
    """Yield the meshes that divide a model and its rows, without useless ones.

    A context axis is tried only for rows beyond what tensor shards of ordinary size can hold, and an expert
    axis only for models with experts.
    """
    contexts = _divisors(num_devices) if length > _LONG_ROW else [1]
    experts = _divisors(num_devices) if config.experts is not None else [1]
    for tensor, context, expert in itertools.product(_divisors(num_devices), contexts, experts):
        rest, remainder = divmod(num_devices, tensor * context * expert)
        if remainder or tensor > _MAX_TENSOR:
            continue
        for fsdp in _divisors(rest):
            mesh = MeshSettings(data=rest // fsdp, fsdp=fsdp, context=context, tensor=tensor, expert=expert)
            if refusal(config, mesh) is None and length % mesh.length_multiple == 0:
                yield mesh


def _plans(config: ModelConfig, topology: Topology, wanted: Wanted) -> Iterator[Plan]:
    every = meshes(config, topology.num_devices, wanted.length)
    for mesh in every if wanted.mesh is None else [wanted.mesh]:
        for rows, micro_batches in _micro_batches(mesh, wanted):
            for remat in REMATS if wanted.remat is None else (wanted.remat,):
                plan = Plan(mesh, rows, wanted.length, micro_batches, remat)
                if wanted.mesh is not None:
                    check_plan(config, plan)
                yield plan


def _micro_batches(mesh: MeshSettings, wanted: Wanted) -> Iterator[tuple[int, int]]:
    """Yield rows of a micro-batch, and how many of it a step has."""
    multiple = mesh.row_multiple
    for rows in [multiple * factor for factor in _ROWS_OF_SHARD] if wanted.rows is None else [wanted.rows]:
        if wanted.mesh is None and rows % multiple:
            continue
        if wanted.tokens is None:
            yield rows, 1
        elif wanted.tokens % (rows * wanted.length) == 0:
            yield rows, wanted.tokens // (rows * wanted.length)


def _may_fit(candidate: Candidate, tried: dict[Candidate, Verdict], hopeful: bool) -> bool:
    verdict = tried.get(candidate)
    return hopeful if verdict is None else verdict.fits


def _excess(candidate: Candidate, verdict: Verdict, before: float) -> float:
    """Return how much more than estimated a plan needs beyond what stays between steps."""
    moving = verdict.memory.peak - verdict.memory.resident
    if verdict.refusal is not None and moving <= 0:
        return before * _UNKNOWN_EXCESS
    return max(moving / max(1, candidate.memory.peak - candidate.memory.resident), 0.1)


def _outcome(ranked: list[Candidate], tried: dict[Candidate, Verdict], topology: Topology) -> Outcome:
    fitting = [one for one in ranked if one in tried and tried[one].fits]
    every = tuple(tried.items())
    if fitting:
        return Outcome(fitting[0], tried[fitting[0]], every)
    if every:
        candidate, verdict = min(every, key=lambda pair: pair[1].memory.peak)
        return Outcome(candidate, verdict, every)
    least = min(ranked, key=lambda one: one.memory.peak)
    return Outcome(least, by_arithmetic(least.memory, topology, least.work.collectives), ())


def _no_plan(config: ModelConfig, topology: Topology, wanted: Wanted) -> ConfigError:
    multiple = wanted.length * (wanted.rows or (wanted.mesh.row_multiple if wanted.mesh is not None else 1))
    if wanted.tokens is None or wanted.tokens % multiple == 0:
        return ConfigError(
            "no mesh divides the model and its rows",
            got=f"{topology.num_devices} devices, rows of {wanted.length} tokens",
            limit=f"{config.num_kv_heads} key-value heads, width {config.hidden_size}",
            remedy="Change --length, --rows or the topology.",
        )
    return ConfigError(
        "the tokens of a step are not whole rows for every shard",
        got=wanted.tokens,
        limit=f"a multiple of {multiple}",
        remedy=f"For example --tokens {max(1, wanted.tokens // multiple) * multiple}.",
    )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
