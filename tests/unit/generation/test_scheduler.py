from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.clock import ManualClock
from forebay.errors import GenerationError
from forebay.generation.protocol import BadRequestError, DuplicateRequestError, OverloadedError
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from forebay.trajectory import VersionSpan
from tests.unit.generation.fakes import Answers, FakeExecutor, expected_tokens, next_token, request, version


class Bench:
    """A scheduler over the fake model."""

    def __init__(self, **settings: Any) -> None:
        fields = {"slots": 2, "context": 32, "prefill_chunks": (2, 4), "shared_prefix_min_tokens": 4}
        self.settings = GeneratorSettings(**(fields | settings))
        self.executor = FakeExecutor(self.settings.slots, self.settings.context)
        self.clock = ManualClock()
        self.scheduler = Scheduler(self.executor, self.settings, version(0), self.clock)
        self.answers = Answers()

    def submit(self, name: str, *args: Any, **fields: Any) -> None:
        self.scheduler.submit(request(name, *args, **fields), self.answers(name))

    def run(self, limit: int = 200) -> None:
        while self.scheduler.step():
            limit -= 1
            assert limit, "does not end"

    def one(self, name: str, *args: Any, **fields: Any) -> Any:
        self.submit(name, *args, **fields)
        self.run()
        return self.answers[name]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_tokens_logprobs_and_spans_are_those_of_the_model(bench: Bench) -> None:
    completion = bench.one("a", [1, 2, 3, 4, 5, 6], max_tokens=5)
    expected = expected_tokens([1, 2, 3, 4, 5, 6], 5)
    assert completion.tokens.tolist() == expected
    assert completion.logprobs.tolist() == [-(1 + token) / 64 for token in expected]
    assert completion.version_spans == (VersionSpan(5, version(0), version(0)),)
    assert completion.finish == "length"
    assert (completion.num_prefilled, completion.num_cached) == (6, 0)


def test_the_wait_for_a_slot_is_told_apart_from_the_prompt(bench: Bench) -> None:
    for number in range(3):  # of two slots
        bench.submit(f"r{number}", [number, 9], max_tokens=2)
    bench.clock.advance(1.5)
    assert bench.scheduler.step()
    bench.clock.advance(2.0)
    bench.run()
    assert [bench.answers[f"r{number}"].queue_s for number in range(3)] == [1.5, 1.5, 3.5]
    assert [bench.answers[f"r{number}"].wait_s for number in range(3)] == [1.5, 1.5, 3.5]


def test_more_requests_than_slots_all_end_with_their_own_tokens(bench: Bench) -> None:
    for number in range(7):
        bench.submit(f"r{number}", [number, 9], max_tokens=1 + number)
    bench.run()
    for number in range(7):
        assert bench.answers[f"r{number}"].tokens.tolist() == expected_tokens([number, 9], 1 + number)


def test_prompt_of_one_token_needs_no_prefill(bench: Bench) -> None:
    assert bench.one("a", [3]).tokens.tolist() == expected_tokens([3], 4)
    assert bench.executor.prefilled_tokens == 0


def test_stop_token_ends_and_is_part_of_the_completion(bench: Bench) -> None:
    expected = expected_tokens([1, 2], 10)
    stop = expected[2]
    completion = bench.one("a", [1, 2], max_tokens=10, stop_tokens=(stop,))
    assert completion.tokens.tolist() == expected[: expected.index(stop) + 1]
    assert completion.finish == "stop"


def test_c11_max_tokens_is_clipped_to_the_context(bench: Bench) -> None:
    completion = bench.one("a", list(range(28)), max_tokens=8)
    assert len(completion.tokens) == 4
    assert completion.finish == "context"


@pytest.mark.parametrize("num_prompt", [32, 40])
def test_c11_no_room_ends_at_once_without_tokens(bench: Bench, num_prompt: int) -> None:
    bench.submit("a", [1] * num_prompt, max_tokens=8)
    completion = bench.answers["a"]
    assert (completion.finish, len(completion.tokens), completion.version_spans) == ("context", 0, ())
    assert not bench.scheduler.step()


def test_exactly_fitting_max_tokens_ends_by_length(bench: Bench) -> None:
    assert bench.one("a", list(range(28)), max_tokens=4).finish == "length"


def test_follow_up_reuses_the_parked_cache_and_samples_the_same(bench: Bench) -> None:
    first = bench.one("a", [1, 2, 3], episode_id="e", keep=True)
    prompt = [1, 2, 3, *first.tokens.tolist(), 8, 9]
    again = bench.one("b", prompt, episode_id="e", keep=True)
    assert again.tokens.tolist() == expected_tokens(prompt, 4)
    # The last sampled token was never fed, and the last token of a prompt is fed by decoding.
    assert (again.num_cached, again.num_prefilled) == (6, 3)
    assert bench.scheduler.pool.counters.reused == 1


def test_follow_up_that_diverges_reuses_only_the_common_prefix(bench: Bench) -> None:
    bench.one("a", [1, 2, 3, 4, 5], episode_id="e", keep=True)
    again = bench.one("b", [1, 2, 3, 7, 7, 7], episode_id="e")
    assert again.tokens.tolist() == expected_tokens([1, 2, 3, 7, 7, 7], 4)
    assert again.num_cached == 3


def test_evicted_episode_is_computed_again_and_counted() -> None:
    bench = Bench(parked_episodes=1, shared_prefixes=0)
    first = bench.one("a", [1, 2, 3], episode_id="e1", keep=True)
    bench.one("b", [4, 5, 6], episode_id="e2", keep=True)
    prompt = [1, 2, 3, *first.tokens.tolist(), 8]
    again = bench.one("c", prompt, episode_id="e1")
    assert again.tokens.tolist() == expected_tokens(prompt, 4)
    assert again.num_cached == 0
    counters = bench.scheduler.pool.counters
    assert (counters.parked, counters.evicted, counters.recomputed) == (2, 1, 1)


def test_released_episode_is_forgotten(bench: Bench) -> None:
    bench.one("a", [1, 2, 3], episode_id="e", keep=True)
    bench.scheduler.release("e")
    assert bench.scheduler.pool.num_parked == 0


def test_group_members_share_their_prompt() -> None:
    bench = Bench(slots=4)
    prompt = list(range(10, 20))
    for member in range(4):
        bench.submit(f"m{member}", prompt, seed=member)
    bench.run()
    for member in range(4):
        assert bench.answers[f"m{member}"].tokens.tolist() == expected_tokens(prompt, 4, seed=member)
    assert bench.executor.prefilled_tokens == 9
    assert bench.scheduler.pool.counters.shared_hits == 3


def test_swap_in_flight_goes_on_and_marks_the_tokens(bench: Bench) -> None:
    bench.submit("a", [1, 2, 3], max_tokens=6)
    bench.scheduler.step()
    assert bench.scheduler.load(version(1), "w1")
    bench.run()
    completion = bench.answers["a"]
    assert completion.version_spans == (
        VersionSpan(2, version(0), version(0)),
        VersionSpan(4, version(1), version(0)),
    )
    # The first three tokens and the first sampled one were computed by the old weights, the rest by the new.
    old = expected_tokens([1, 2, 3], 2)
    cells = [(token, "w0") for token in [1, 2, 3, old[0]]] + [(old[1], "w1")]
    assert completion.tokens[2] == next_token(cells, 0)


def test_c63_shared_prompts_never_survive_an_update(bench: Bench) -> None:
    prompt = list(range(10, 20))
    bench.one("a", prompt)
    bench.scheduler.load(version(1), "w1")
    completion = bench.one("b", prompt)
    assert completion.tokens.tolist() == expected_tokens(prompt, 4, "w1")
    assert completion.version_spans == (VersionSpan(4, version(1), version(1)),)


@pytest.mark.parametrize(("updates", "num_cached"), [(2, 6), (3, 0)])
def test_c63_parked_cache_is_recomputed_beyond_the_bound(updates: int, num_cached: int) -> None:
    bench = Bench(max_kv_staleness=7)
    first = bench.one("a", [1, 2, 3], episode_id="e", keep=True)
    for number in range(1, updates + 1):
        bench.scheduler.load(version(number), f"w{number}")
    prompt = [1, 2, 3, *first.tokens.tolist(), 8, 9]
    again = bench.one("b", prompt, episode_id="e", max_kv_staleness=2)
    assert again.num_cached == num_cached
    if not num_cached:
        assert again.tokens.tolist() == expected_tokens(prompt, 4, f"w{updates}")
    assert again.version_spans[0].kv_version == (version(0) if num_cached else version(updates))
    assert bench.scheduler.pool.counters.too_old == (0 if num_cached else 1)


def test_recompute_mode_attends_to_nothing_older_even_in_flight() -> None:
    bench = Bench(kv_across_versions="recompute")
    bench.submit("a", [1, 2, 3], max_tokens=6)
    bench.scheduler.step()
    bench.scheduler.load(version(1), "w1")
    bench.run()
    completion = bench.answers["a"]
    old = expected_tokens([1, 2, 3], 2)
    assert completion.tokens.tolist() == old + expected_tokens([1, 2, 3, *old], 4, "w1")
    assert completion.version_spans[1] == VersionSpan(4, version(1), version(1))
    assert bench.scheduler.counters.recomputed_in_flight == 1


def test_another_incarnation_never_reuses_a_cache(bench: Bench) -> None:
    first = bench.one("a", [1, 2, 3], episode_id="e", keep=True)
    bench.scheduler.load(version(0, incarnation=1), "w1")
    prompt = [1, 2, 3, *first.tokens.tolist(), 8]
    assert bench.one("b", prompt, episode_id="e").num_cached == 0


def test_c35_older_weights_are_refused(bench: Bench) -> None:
    assert bench.scheduler.load(version(40), "w40")
    assert not bench.scheduler.load(version(0), "w0")
    assert not bench.scheduler.load(version(40), "other")
    assert bench.executor.weights == "w40"
    assert bench.scheduler.load(version(38, incarnation=1), "w38")
    assert bench.scheduler.version == version(38, incarnation=1)


def test_min_version_holds_a_request_and_lets_others_pass(bench: Bench) -> None:
    bench.submit("held", [1, 2], min_version=version(1))
    bench.submit("free", [3, 4])
    bench.run()
    assert "held" not in bench.answers.by_name
    assert bench.answers["free"].finish == "length"
    bench.scheduler.load(version(1), "w1")
    bench.run()
    assert bench.answers["held"].tokens.tolist() == expected_tokens([1, 2], 4, "w1")
    assert bench.answers["held"].version_spans[0].version == version(1)


def test_deadline_ends_a_running_request_with_what_it_has(bench: Bench) -> None:
    bench.submit("a", [1, 2], max_tokens=20, deadline_s=5.0)
    bench.scheduler.step()
    bench.clock.advance(5.0)
    bench.run()
    completion = bench.answers["a"]
    assert (completion.finish, completion.tokens.tolist()) == ("deadline", expected_tokens([1, 2], 2))
    assert completion.generate_s == 5.0


def test_deadline_ends_a_held_request_and_wakes_the_loop(bench: Bench) -> None:
    bench.submit("a", [1, 2], min_version=version(9), deadline_s=5.0)
    assert bench.scheduler.next_deadline_s() == 5.0
    assert not bench.scheduler.step()
    bench.clock.advance(5.0)
    bench.scheduler.step()
    assert (bench.answers["a"].finish, len(bench.answers["a"].tokens)) == ("deadline", 0)
    assert bench.scheduler.counters.timed_out == 1


def test_abort_frees_the_slot_and_returns_what_there_is() -> None:
    bench = Bench(slots=1)
    bench.submit("a", [1, 2], max_tokens=20)
    bench.submit("b", [3, 4])
    bench.scheduler.step()
    bench.scheduler.abort("a")
    bench.scheduler.abort("unknown")
    bench.run()
    assert (bench.answers["a"].finish, len(bench.answers["a"].tokens)) == ("abort", 2)
    assert bench.answers["b"].tokens.tolist() == expected_tokens([3, 4], 4)


def test_follow_ups_go_before_new_prompts() -> None:
    bench = Bench(slots=1)
    first = bench.one("a", [1, 2, 3], episode_id="e", keep=True)
    bench.submit("new", [4, 5, 6])
    bench.submit("next", [1, 2, 3, *first.tokens.tolist(), 9], episode_id="e")
    bench.run()
    assert list(bench.answers.by_name) == ["a", "next", "new"]


def test_what_cannot_be_served_is_refused(bench: Bench) -> None:
    small = Bench(max_queue=1, slots=1)
    small.submit("a", [1, 2])
    small.submit("b", [1, 2])
    assert isinstance(small.answers.by_name["b"], OverloadedError)
    bench.submit("c", [1], stop_tokens=tuple(range(9)))
    assert isinstance(bench.answers.by_name["c"], BadRequestError)
    bench.submit("d", [1], max_tokens=0)
    assert isinstance(bench.answers.by_name["d"], BadRequestError)
    bench.submit("x", [1, 2])
    other: list[Any] = []
    bench.scheduler.submit(request("x"), other.append)
    assert isinstance(other[0], DuplicateRequestError)
    bench.scheduler.step()
    bench.scheduler.submit(request("x"), other.append)
    assert isinstance(other[1], DuplicateRequestError)


def test_failure_reaches_every_request(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.submit(name, [1, 2])
    bench.scheduler.step()
    error = GenerationError("the device is gone")
    bench.scheduler.fail(error)
    assert [bench.answers.by_name[name] for name in ("a", "b", "c")] == [error] * 3
    assert bench.scheduler.counters.failed == 3
    assert not bench.scheduler.step()


def test_long_prompt_leaves_turns_to_decoding() -> None:
    bench = Bench(prefill_budget_tokens=4)
    bench.submit("short", [1, 2], max_tokens=12)
    bench.scheduler.step()
    bench.submit("long", list(range(20)), max_tokens=1)
    for _ in range(3):
        bench.scheduler.step()
    assert bench.scheduler.counters.sampled_tokens == 8
    bench.run()
    assert bench.answers["long"].tokens.tolist() == expected_tokens(list(range(20)), 1)


def test_any_interleaving_samples_what_a_fresh_cache_would(bench: Bench) -> None:
    """Many episodes of several turns over few slots and a small pool: each turn is the model's own."""
    bench = Bench(slots=3, parked_episodes=2, shared_prefixes=2)
    rng = np.random.default_rng(7)
    prompts = {f"e{number}": [1, 2, 3, 4, 5, number] for number in range(8)}
    for turn in range(3):
        for episode in rng.permutation(sorted(prompts)):
            bench.submit(f"{episode}.{turn}", prompts[episode], episode_id=str(episode), keep=True)
        bench.run()
        for episode, prompt in prompts.items():
            completion = bench.answers[f"{episode}.{turn}"]
            assert completion.tokens.tolist() == expected_tokens(prompt, 4), episode
            prompt += [*completion.tokens.tolist(), int(rng.integers(50))]
    counters = bench.scheduler.pool.counters
    assert counters.reused
    assert counters.evicted
    assert counters.recomputed
