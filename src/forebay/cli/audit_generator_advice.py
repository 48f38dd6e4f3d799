"""What the measured loads of a generator mean, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forebay.cli.transcript import visible
from forebay.planner.audit_calls import GeneratorAudit, Load
from forebay.report.text import number, percent, seconds

_SURE: Final = 0.9
_FEW: Final = 30
_BUSY: Final = 0.8
_SHOWN: Final = 200


def advise_generator(found: GeneratorAudit) -> list[str]:
    """Return how many requests at a time are worth it, what failed, and how sure that is.

    Args:
        found: With at least one load that was answered.
    """
    return [*_knee(found), *_failures(found), *_doubts(found), _own(found)]


def _knee(found: GeneratorAudit) -> Iterator[str]:
    knee, first, top = found.knee, found.loads[0], found.loads[-1]
    if knee.kind == "unknown":
        yield "Only one load was measured: whether more at a time gain anything is not known."
        return
    at = next(load for load in found.loads if load.requests == knee.concurrency)
    if knee.kind != "saturates":
        yield (
            f"Up to {top.requests} requests at a time, more still give more tokens: {number(_rate(first))}/s "
            f"at {first.requests}, {number(_rate(top))}/s at {top.requests}."
        )
        return
    yield (
        f"More than {at.requests} requests at a time gain nothing: from {at.requests} to {top.requests}, "
        f"tokens go from {number(_rate(at))} to {number(_rate(top))}/s, and 1 call in 20 takes more than "
        f"{seconds(_slow_s(top))} with its wait, not {seconds(_slow_s(at))}."
    )
    if found.slots and at.requests < found.slots:
        yield (
            f"It has {found.slots} slots: generator.slots={at.requests} would do as much with less memory, "
            f"and each call would be sooner answered."
        )


def _rate(load: Load) -> float:
    return load.tokens_per_s.value


def _slow_s(load: Load) -> float:
    ordered = sorted(call.ended_s - call.began_s for call in load.calls)
    return ordered[int(0.95 * (len(ordered) - 1))]


def _failures(found: GeneratorAudit) -> Iterator[str]:
    counts = {load.requests: load.num_errors for load in found.loads}
    for requests, error in found.errors.items():
        number_of = counts.get(requests)
        how_many = "All requests" if number_of is None else f"{number_of} requests"
        yield f"{how_many} with {requests} at a time failed. The last one: {visible(error)[:_SHOWN]}."


def _doubts(found: GeneratorAudit) -> Iterator[str]:
    few = [load for load in found.loads if len(load.calls) < _FEW]
    if few:
        which = ", ".join(f"{len(load.calls)} with {load.requests} at a time" for load in few)
        yield f"Few calls were answered ({which}): p99 and the knee are rough there. Raise --seconds."
    if found.knee.kind == "saturates" and found.knee.certainty < _SURE:
        yield (
            f"When its time slices are drawn again, {percent(found.knee.certainty)} of the draws find the "
            f"limit at {found.knee.concurrency}: it is not certain."
        )


def _own(found: GeneratorAudit) -> str:
    text = f"Asking took at most {percent(found.own_share)} of one core"
    if found.own_share > _BUSY:
        return f"{text}: the client may be what limits here, so measure with fewer requests at a time."
    return f"{text}."
