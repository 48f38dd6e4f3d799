"""In whatever order things happen: every request ends once, and no token attends beyond its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.clock import ManualClock
from forebay.errors import ForebayError
from forebay.generation.protocol import Completion
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import DecodeBatch, Decoded
from tests.unit.generation.fakes import Answers, FakeExecutor, request, version

SCALE = 1024
NUM_EPISODES = 5


class Telling(FakeExecutor):
    """Puts the truth into the logprob: the weights that sampled, and the oldest that were attended to."""

    def decode(self, batch: DecodeBatch) -> Decoded:
        decoded = super().decode(batch)
        for slot in np.flatnonzero(batch.remaining):
            oldest = min(weights for _, weights in self.cache[slot])
            decoded.logprobs[:, slot] = -(self.weights * SCALE + oldest)
        return decoded


OPERATIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, NUM_EPISODES - 1), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
    st.tuples(st.just("load"), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("release"), st.integers(0, NUM_EPISODES - 1)),
    st.tuples(st.just("time"), st.floats(0, 3)),
)


@given(
    operations=st.lists(OPERATIONS, max_size=60),
    bound=st.integers(0, 3),
    parked=st.integers(0, 3),
    shared=st.integers(0, 2),
    mode=st.sampled_from(["bounded", "recompute"]),
)
def test_every_request_ends_once_within_its_bound(
    operations: list[tuple[Any, ...]], bound: int, parked: int, shared: int, mode: str
) -> None:
    settings = GeneratorSettings(
        slots=2,
        context=24,
        prefill_chunks=(2, 4),
        prefill_budget_tokens=5,
        parked_episodes=parked,
        shared_prefixes=shared,
        shared_prefix_min_tokens=2,
        kv_across_versions=mode,
        max_kv_staleness=bound,
        max_queue=4,
    )
    clock, answers = ManualClock(), Answers()
    scheduler = Scheduler(Telling(2, 24, weights=0), settings, version(0), clock)
    prompts = {episode: [1, 2, 3, episode] for episode in range(NUM_EPISODES)}
    submitted: list[str] = []
    for operation in operations:
        match operation:
            case ("submit", episode, max_tokens, keep):
                name = str(len(submitted))
                submitted.append(name)
                scheduler.submit(
                    request(
                        name,
                        prompts[episode],
                        episode_id=f"e{episode}",
                        max_tokens=max_tokens,
                        deadline_s=5.0,
                        keep=keep,
                    ),
                    answers(name),
                )
                prompts[episode].append(max_tokens)
            case ("step",):
                scheduler.step()
            case ("load", ahead):
                newest = scheduler.version.version + ahead
                scheduler.load(version(newest), newest)
            case ("abort", number):
                scheduler.abort(str(number))
            case ("release", episode):
                scheduler.release(f"e{episode}")
            case ("time", duration_s):
                clock.advance(duration_s)
    for _ in range(300):
        if not scheduler.step():
            break

    assert sorted(answers.by_name) == sorted(submitted)
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.pool.num_parked <= parked
    for result in answers.by_name.values():
        if isinstance(result, ForebayError):
            continue
        check(result, 0 if mode == "recompute" else bound)


def check(completion: Completion, bound: int) -> None:
    truth = [divmod(int(-logprob), SCALE) for logprob in completion.logprobs]
    claimed = [
        (span.version.version, span.kv_version.version)
        for span in completion.version_spans
        for _ in range(span.num_tokens)
    ]
    assert len(claimed) == len(truth) == len(completion.tokens)
    for (said, said_kv), (sampled, oldest) in zip(claimed, truth, strict=True):
        assert said == sampled
        assert said_kv <= oldest, "the cache is older than what is said of it"
        assert said - said_kv <= bound
    assert [said for said, _ in claimed] == sorted(said for said, _ in claimed)
