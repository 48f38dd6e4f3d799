"""Model calls whose rates and times can be counted by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from forebay.cli.audit_generator_advice import advise_generator
from forebay.planner.audit_calls import Load, ModelCall, conclude_loads, generator_profile, interval
from forebay.planner.audit_statistics import Estimate
from tests.unit.planner.profiles import ORIGIN


def call(began_s: float, *, queue_s: float = 0.0, tells: bool = True, tokens: int = 10) -> ModelCall:
    """Return a call that is served for half a second: a tenth for the prompt, the rest to sample."""
    return ModelCall(
        began_s=began_s,
        ended_s=began_s + queue_s + 0.5,
        queue_s=queue_s,
        prefill_s=0.1 if tells else None,
        decode_s=0.4 if tells else None,
        sampled_tokens=tokens,
        computed_tokens=20,
    )


def load(requests: int, slots: int = 2, *, tells: bool = True) -> Load:
    """Return ten seconds in which so many requests follow one another through some slots."""
    wait_s = 0.5 * max(0, requests - slots) / slots
    calls = [
        call(0.5 * turn - wait_s, queue_s=wait_s, tells=tells)
        for _ in range(min(requests, slots))
        for turn in range(24)
        if 0.5 * turn - wait_s <= 10.0
    ]
    prompts = tuple(call(0.5 * turn, tokens=1) for turn in range(4))
    return Load(requests=requests, window_s=10.0, calls=tuple(calls), prompts_s=2.0, prompts=prompts)


def test_rates_are_of_tokens_and_the_wait_for_a_slot_is_no_service() -> None:
    found = generator_profile(conclude_loads("a", "b", 2, [load(4), load(1), load(2)], {}), ORIGIN)
    assert found is not None
    assert [level.requests for level in found.levels] == [1, 2, 4]
    assert [level.tokens_per_s for level in found.levels] == pytest.approx([20.0, 40.0, 40.0])
    assert [level.call_s.mean for level in found.levels] == pytest.approx([0.5] * 3)
    assert [level.wait_s.mean for level in found.levels if level.wait_s] == pytest.approx([0.0, 0.0, 0.5])
    assert [level.prefill_s.mean for level in found.levels if level.prefill_s] == pytest.approx([0.1] * 3)
    assert [level.prefill_tokens_per_s for level in found.levels] == pytest.approx([40.0] * 3)
    assert all(low.call_s.mean <= high.call_s.mean + 1e-9 for low, high in pairwise(found.levels))
    assert (found.knee, found.slots) == (2, 2)


def test_a_generator_that_tells_nothing_has_calls_alone() -> None:
    audit = conclude_loads("a", "b", 0, [load(1, tells=False), load(2, tells=False)], {})
    found = generator_profile(audit, ORIGIN)
    assert found is not None and found.slots == 2 and found.knee is None
    assert (found.levels[0].wait_s, found.levels[0].prefill_s) == (None, None)
    assert found.levels[0].call_s.mean == 0.5


def test_a_load_without_an_answer_is_left_out_and_its_error_kept() -> None:
    failed = Load(requests=8, window_s=1.0, calls=(), num_errors=3, error="the queue is full")
    audit = conclude_loads("a", "b", 2, [load(1), failed], {})
    assert [one.requests for one in audit.loads] == [1]
    assert audit.errors == {8: "the queue is full"}
    assert generator_profile(conclude_loads("a", "b", 2, [failed], {}), ORIGIN) is None


def test_too_few_measurements_have_no_interval() -> None:
    assert interval(Estimate(3.0, -math.inf, math.inf)) is None
    assert interval(Estimate(3.0, -1.0, 7.0)) == (0.0, 7.0)


def test_what_loads_mean_is_told_with_what_is_not_sure() -> None:
    text = "\n".join(advise_generator(conclude_loads("a", "b", 4, [load(1), load(2), load(4)], {}, 0.02)))
    assert "More than 2 requests at a time gain nothing: from 2 to 4, tokens go from 40 to 40/s" in text
    assert "takes more than 1.00 s with its wait, not 0.50 s" in text
    assert "It has 4 slots: generator.slots=2 would do as much" in text
    assert "Few calls were answered (21 with 1 at a time)" in text
    assert text.endswith("Asking took at most 2.0 % of one core.")
    failed = Load(requests=8, window_s=1.0, calls=(), num_errors=3, error="the queue is full")
    growing = "\n".join(advise_generator(conclude_loads("a", "b", 4, [load(1), load(2), failed], {}, 0.9)))
    assert "Up to 2 requests at a time, more still give more tokens: 20/s at 1, 40/s at 2." in growing
    assert "All requests with 8 at a time failed. The last one: the queue is full." in growing
    assert "the client may be what limits here" in growing
    (unknown, *_) = advise_generator(conclude_loads("a", "b", 4, [load(1)], {}))
    assert unknown.startswith("Only one load was measured")
