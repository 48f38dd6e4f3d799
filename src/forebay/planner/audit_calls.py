"""From measured model calls to what a generator does by load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.planner.audit_statistics import Estimate, Knee, find_knee, mean_estimate, slice_rates
from forebay.planner.distribution import Distribution, sampled
from forebay.planner.profile_records import GeneratorLevel, GeneratorProfile, Origin, Traffic

_DECIMALS: Final = 6


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request.

    Args:
        began_s: When it was sent, in seconds since its level began.
        ended_s: When its answer was there.
        queue_s: Wait for a slot.
        prefill_s: From the slot to the first sampled token; None if the generator does not tell.
        decode_s: From there to the last one; None likewise.
        sampled_tokens: Tokens of the answer.
        computed_tokens: Tokens of the prompt that were not cached.
    """

    began_s: float
    ended_s: float
    queue_s: float
    prefill_s: float | None
    decode_s: float | None
    sampled_tokens: int
    computed_tokens: int

    @property
    def served_s(self) -> float:
        """Time that it was served: without its wait for a slot."""
        return max(0.0, self.ended_s - self.began_s - self.queue_s)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of requests at a time gave.

    Args:
        requests: Requests at a time.
        window_s: Time in which episodes were replayed.
        calls: What was answered in it, or afterwards having begun in it.
        prompts_s: Time in which prompts were read alone.
        prompts: The requests for a single token of it.
        num_errors: Requests that failed.
        error: What the last of these said.
    """

    requests: int
    window_s: float
    calls: tuple[ModelCall, ...]
    prompts_s: float = 0.0
    prompts: tuple[ModelCall, ...] = ()
    num_errors: int = 0
    error: str = ""

    @property
    def token_rates(self) -> list[float]:
        """Tokens sampled per second, in slices of the window."""
        return slice_rates(self.calls, self.window_s, lambda call: float(call.sampled_tokens))

    @property
    def tokens_per_s(self) -> Estimate:
        """Tokens sampled per second, with the interval of their mean over slices."""
        return mean_estimate(self.token_rates)

    @property
    def prefill_tokens_per_s(self) -> Estimate | None:
        """Prompt tokens computed per second while nothing else ran; None if that was not measured."""
        if not self.prompts:
            return None
        return mean_estimate(slice_rates(self.prompts, self.prompts_s, lambda call: call.computed_tokens))


class GeneratorAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found out about a generator.

    Args:
        address: Where it answers.
        asked: What it was asked, in words.
        slots: Requests that it serves at once; 0 if it does not say.
        loads: By rising load; those without an answer are left out.
        knee: Where more load gives no more tokens.
        errors: What failed, an example by load.
        traffic: What was asked, by environment.
        own_share: Share of one core that asking took, at the most.
    """

    address: str
    asked: str
    slots: int
    loads: tuple[Load, ...]
    knee: Knee
    errors: dict[int, str]
    traffic: dict[str, Traffic]
    own_share: float = 0.0


def conclude_loads(
    address: str,
    asked: str,
    slots: int,
    loads: Sequence[Load],
    traffic: dict[str, Traffic],
    own_share: float = 0.0,
) -> GeneratorAudit:
    """Work out what measured loads mean.

    Args:
        address: Where the generator answers.
        asked: What it was asked, in words.
        slots: Requests that it serves at once; 0 if it does not say.
        loads: What was measured, in any order.
        traffic: What was asked, by environment.
        own_share: Share of one core that asking took.
    """
    answered = sorted((load for load in loads if load.calls), key=lambda load: load.requests)
    return GeneratorAudit(
        address=address,
        asked=asked,
        slots=slots,
        loads=tuple(answered),
        knee=find_knee({load.requests: load.token_rates for load in answered}),
        errors={load.requests: load.error for load in loads if load.num_errors},
        traffic=traffic,
        own_share=own_share,
    )


def generator_profile(audit: GeneratorAudit, origin: Origin) -> GeneratorProfile | None:
    """Return what a planner needs; None if nothing was answered.

    A generator that does not tell its slots is taken to have as many as were tried.

    Args:
        audit: What was found.
        origin: Where and when.
    """
    if not audit.loads:
        return None
    return GeneratorProfile(
        origin=origin,
        slots=audit.slots or audit.loads[-1].requests,
        levels=tuple(_level(load) for load in audit.loads),
        knee=audit.knee.concurrency if audit.knee.kind == "saturates" else None,
        traffic=audit.traffic,
    )


def _level(load: Load) -> GeneratorLevel:
    rate, prompts = load.tokens_per_s, load.prefill_tokens_per_s
    told = all(call.prefill_s is not None for call in load.calls)
    return GeneratorLevel(
        requests=load.requests,
        tokens_per_s=rate.value,
        tokens_per_s_interval=interval(rate),
        call_s=times([call.served_s for call in load.calls]),
        wait_s=times([call.queue_s for call in load.calls]) if told else None,
        prefill_s=times([call.prefill_s or 0.0 for call in load.calls]) if told else None,
        decode_s=times([call.decode_s or 0.0 for call in load.calls]) if told else None,
        prefill_tokens_per_s=prompts.value if prompts is not None else None,
        num_errors=load.num_errors,
    )


def interval(found: Estimate) -> tuple[float, float] | None:
    """Return the ends of the interval of a rate; None where there were too few measurements for one."""
    return (max(0.0, found.low), found.high) if math.isfinite(found.high) else None


def times(values_s: Sequence[float]) -> Distribution:
    """Return the distribution of measured times; microseconds are exact enough, and people read the file."""
    return sampled(round(value_s, _DECIMALS) for value_s in values_s)
