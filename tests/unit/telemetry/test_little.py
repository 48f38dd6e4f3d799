from __future__ import annotations

import random

import pytest

from forebay.telemetry.little import Flow, balance, balances


def test_the_law_holds_for_a_queue_sampled_at_random() -> None:
    rng = random.Random(7)
    spans, now_s = [], 0.0
    for _ in range(4000):
        now_s += rng.expovariate(2.0)
        spans.append((now_s, now_s + rng.lognormvariate(0.0, 1.0)))
    flow = Flow(passed=len(spans), time_s=sum(end - begin for begin, end in spans))
    for _ in range(400):
        moment_s = rng.uniform(0.0, now_s)
        inside = sum(begin <= moment_s < end for begin, end in spans)
        flow.merge(Flow(0, 0.0, 1, inside, inside**2))
    found = balance("buffer", flow, now_s)
    assert found is not None and found.agrees and found.meaning == "agrees"
    assert found.ratio == pytest.approx(1.0, abs=found.tolerance)
    assert found.tolerance < 0.25


@pytest.mark.parametrize(("seen", "agrees", "word"), [
    (4.0, True, "agrees"), (8.0, False, "more is inside"), (1.0, False, "less is inside"),
])  # fmt: skip
def test_a_ratio_that_is_off_says_what_that_means(seen, agrees, word) -> None:
    flow = Flow(100, 400.0, 50, 50 * seen, 50 * seen * seen)
    found = balance("episodes", flow, 100.0)
    assert found is not None
    assert (found.inside, found.rate_per_s, found.time_s, found.ratio) == (seen, 1.0, 4.0, seen / 4.0)
    # A tenth, 4 s of 100 s at the ends, and two standard errors of 50 looks at a Poisson number.
    assert found.tolerance == pytest.approx(0.14 + 2 * (4.0 / 50) ** 0.5 / max(4.0, seen))
    assert found.agrees is agrees and found.meaning.startswith(word)
    blind = balance("episodes", flow, 100.0, missed_s=10.0)
    assert blind is not None and blind.tolerance == pytest.approx(found.tolerance + 0.1)


def test_few_looks_and_empty_queues_accuse_nobody() -> None:
    assert balance("buffer", Flow(10, 5.0), 10.0) is None
    assert balance("buffer", Flow(0, 0.0, 9, 1.0, 1.0), 10.0) is None
    assert balance("buffer", Flow(10, 5.0, 9, 1.0, 1.0), 0.0) is None
    few = balance("buffer", Flow(10, 50.0, 9, 90.0, 900.0), 10.0)
    assert few is not None and few.agrees is None and few.meaning == "too few samples to tell"
    idle = balance("packing", Flow(100, 0.1, 100, 1.0, 1.0), 100.0)
    assert idle is not None and idle.agrees and idle.meaning == "nearly always empty"
    never = balance("packing", Flow(100, 0.0, 100, 0.0, 0.0), 100.0)
    assert never is not None and never.ratio is None and never.agrees


def test_only_queues_that_were_looked_at_are_balanced() -> None:
    flows = {"buffer": Flow(10, 50.0, 30, 150.0, 750.0), "handover": Flow(3, 1.0)}
    assert [one.queue for one in balances(flows, 10.0)] == ["buffer"]
