"""The JAX engine against the models' own forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError
from forebay.generation.engine import JaxExecutor, prepare_weights
from forebay.generation.protocol import Completion
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from forebay.models.checkpoint_io import load_model, read_tensors
from forebay.models.compiles import CompileCounter
from forebay.models.decode import decode_step, init_cache, prefill
from forebay.models.logprobs import token_logprobs
from forebay.trajectory import Sampling
from tests.unit.generation.fakes import Answers, request, version

MODEL = Path(__file__).parents[2] / "golden" / "models" / "tiny-vocab40"
NUM_REAL = 37
CONFIG, PARAMS = load_model(MODEL, num_real_tokens=NUM_REAL)
TENSORS = read_tensors(MODEL)
# Another set of weights: every matrix a little off, so that every logit moves.
OTHER_TENSORS = {
    name: tensor + 0.05 * np.random.default_rng(number).standard_normal(tensor.shape).astype(np.float32)
    for number, (name, tensor) in enumerate(sorted(TENSORS.items()))
}
SETTINGS = GeneratorSettings(
    slots=4,
    context=64,
    decode_block=3,
    prefill_chunks=(4, 16),
    prefill_rows=2,
    kv_windows=(32, 64),
    shared_prefix_min_tokens=8,
)
OLD = prepare_weights(TENSORS, CONFIG, SETTINGS)
NEW = prepare_weights(OTHER_TENSORS, CONFIG, SETTINGS)
EXECUTOR = JaxExecutor(CONFIG, SETTINGS, OLD)


class Engine:
    """A fresh scheduler over the one compiled executor."""

    def __init__(self, weights: Any = OLD, **settings: Any) -> None:
        EXECUTOR.load(weights)
        fields = SETTINGS.model_copy(update=settings)
        self.scheduler = Scheduler(EXECUTOR, fields, version(0), ManualClock())
        self.answers = Answers()

    def submit(self, name: str, *args: Any, **fields: Any) -> None:
        self.scheduler.submit(request(name, *args, **fields), self.answers(name))

    def run(self) -> None:
        while self.scheduler.step():
            continue

    def one(self, name: str, *args: Any, **fields: Any) -> Completion:
        self.submit(name, *args, **fields)
        self.run()
        return self.answers[name]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, NUM_REAL, length).tolist()


_score = jax.jit(lambda params, *row: token_logprobs(params, CONFIG, *row)[0])


def learner_logprobs(prompt: Sequence[int], completion: Completion, temperature: float) -> np.ndarray:
    """What the learner computes for the completion, in one pass over the whole sequence."""
    length = len(prompt) + len(completion.tokens)
    row = np.zeros((1, CONFIG.max_position), np.int32)
    row[0, :length] = [*prompt, *completion.tokens]
    columns = np.arange(CONFIG.max_position, dtype=np.int32)[None]
    segment_ids = (columns < length).astype(np.int32)
    logprobs = _score(PARAMS, row, segment_ids, columns, np.full(row.shape, temperature, np.float32))
    return np.asarray(logprobs)[0, len(prompt) : length]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("num_prompt", [1, 5, 23])
def test_logprobs_are_those_the_learner_computes(temperature: float, num_prompt: int) -> None:
    prompt = prompt_of(num_prompt)
    completion = Engine().one("a", prompt, sampling=Sampling(temperature=temperature), max_tokens=20, seed=3)
    assert len(completion.tokens) == 20
    np.testing.assert_allclose(
        completion.logprobs, learner_logprobs(prompt, completion, temperature), atol=1e-4, rtol=0
    )


def test_c82_padding_ids_are_never_sampled() -> None:
    engine, hot = Engine(), Sampling(temperature=5.0)
    for number in range(20):
        engine.submit(str(number), prompt_of(4, number), seed=number, max_tokens=40, sampling=hot)
    engine.run()
    sampled = np.concatenate([engine.answers[str(number)].tokens for number in range(20)])
    assert len(set(sampled.tolist())) == NUM_REAL
    assert sampled.max() == NUM_REAL - 1


def test_c23_group_members_differ_and_a_seed_reproduces_whatever_else_runs() -> None:
    prompt = prompt_of(12)
    sampling = Sampling(temperature=2.0)

    def group(seeds: Sequence[int], crowd: int) -> list[tuple[int, ...]]:
        engine = Engine()
        for number in range(crowd):
            engine.submit(f"crowd{number}", prompt_of(7 + number, number), max_tokens=30, seed=99)
        for seed in seeds:
            engine.submit(f"m{seed}", prompt, sampling=sampling, max_tokens=16, seed=seed)
        engine.run()
        return [tuple(engine.answers[f"m{seed}"].tokens.tolist()) for seed in seeds]

    alone = group(range(8), crowd=0)
    assert len(set(alone)) == 8
    assert group(range(8), crowd=3) == alone
    assert group([7, 3, 5, 1, 0, 2, 4, 6], crowd=1) == [alone[seed] for seed in (7, 3, 5, 1, 0, 2, 4, 6)]
    assert not set(group(range(100, 108), crowd=0)) & set(alone)


def test_follow_up_over_a_kept_cache_equals_a_full_prefill() -> None:
    engine = Engine()
    first = engine.one("a", prompt_of(9), episode_id="e", keep=True, max_tokens=7, seed=1)
    prompt = [*prompt_of(9), *first.tokens.tolist(), *prompt_of(6, 1)]
    kept = engine.one("b", prompt, episode_id="e", max_tokens=12, seed=2)
    fresh = Engine().one("b", prompt, max_tokens=12, seed=2)
    assert (kept.num_cached, fresh.num_cached) == (15, 0)
    assert kept.tokens.tolist() == fresh.tokens.tolist()
    np.testing.assert_allclose(kept.logprobs, fresh.logprobs, atol=1e-5, rtol=0)


def test_group_prompt_is_computed_once_with_the_same_result() -> None:
    prompt = prompt_of(20)
    engine = Engine()
    for seed in range(4):
        engine.submit(str(seed), prompt, seed=seed, max_tokens=10)
    engine.run()
    assert engine.scheduler.counters.prefilled_tokens == 19
    for seed in range(4):
        alone = Engine(shared_prefixes=0).one("a", prompt, seed=seed, max_tokens=10)
        assert engine.answers[str(seed)].tokens.tolist() == alone.tokens.tolist()


def test_evicted_cache_is_computed_again_with_the_same_result() -> None:
    engine = Engine(parked_episodes=1, shared_prefixes=0)
    first = engine.one("a", prompt_of(9), episode_id="e", keep=True, seed=1)
    engine.one("other", prompt_of(9, 5), episode_id="f", keep=True)
    prompt = [*prompt_of(9), *first.tokens.tolist(), 3]
    again = engine.one("b", prompt, episode_id="e", seed=2)
    assert again.num_cached == 0
    assert again.tokens.tolist() == Engine().one("b", prompt, seed=2).tokens.tolist()


def test_tokens_after_a_swap_are_of_the_new_weights_over_the_old_cache() -> None:
    engine = Engine()
    prompt = prompt_of(10)
    engine.submit("a", prompt, max_tokens=9, seed=4)
    engine.scheduler.step()
    engine.scheduler.load(version(1), NEW)
    engine.run()
    completion = engine.answers["a"]
    assert [(span.num_tokens, span.version, span.kv_version) for span in completion.version_spans] == [
        (3, version(0), version(0)),
        (6, version(1), version(0)),
    ]
    # The same by hand: old weights fill the cache up to the swap, then new ones go on token by token.
    tokens = [*prompt, *completion.tokens.tolist()]
    num_old = len(prompt) + 3 - 1
    cache = init_cache(CONFIG, 1, 64)
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    fill = jax.jit(lambda *given: prefill(OLD, CONFIG, *given))
    step = jax.jit(lambda *given: decode_step(NEW, CONFIG, *given))
    cache, _ = fill(cache, np.array([tokens[:num_old]], np.int32), zero, zero, one * num_old)
    for position in range(num_old, len(tokens) - 1):
        cache, logits = step(cache, one * tokens[position], one * position)
        expected = jax.nn.log_softmax(logits[0])[tokens[position + 1]]
        assert completion.logprobs[position + 1 - len(prompt)] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("mode", ["bounded", "recompute"])
def test_c63_after_an_update_prompts_are_those_of_a_fresh_engine(mode: str) -> None:
    shared = prompt_of(27)
    prompts = [[*shared, *prompt_of(3, 100 + number)] for number in range(20)]
    engine = Engine(kv_across_versions=mode)
    fresh = Engine(NEW)
    greedy = {"sampling": Sampling(temperature=0.0), "max_tokens": 8}

    def tokens(which: Engine, tag: str) -> list[list[int]]:
        EXECUTOR.load(NEW if which.scheduler.version == version(1) or which is fresh else OLD)
        for number, prompt in enumerate(prompts):
            which.submit(f"{tag}{number}", prompt, **greedy)
        which.run()
        return [which.answers[f"{tag}{number}"].tokens.tolist() for number in range(20)]

    before = tokens(engine, "before")
    engine.scheduler.load(version(1), NEW)
    after = tokens(engine, "after")
    assert engine.scheduler.pool.counters.shared_hits >= 30
    assert after == tokens(fresh, "fresh")
    assert after != before


def test_p5_nothing_compiles_after_warm_up() -> None:
    counter = CompileCounter()
    EXECUTOR.warm_up()
    warm = len(counter.programs)
    engine = Engine(parked_episodes=2)
    rng = np.random.default_rng(0)
    for number in range(12):
        sampling = Sampling(temperature=float(number % 3), top_p=1.0 - 0.05 * (number % 4), top_k=number % 5)
        engine.submit(
            f"r{number}",
            prompt_of(int(rng.integers(1, 50)), number),
            sampling=sampling,
            max_tokens=int(rng.integers(1, 30)),
            stop_tokens=(number,),
            episode_id=f"e{number}",
            keep=bool(number % 2),
        )
        engine.scheduler.step()
        if number == 6:
            engine.scheduler.load(version(1), prepare_weights(OTHER_TENSORS, CONFIG, SETTINGS))
    engine.run()
    for number in range(1, 12, 2):
        engine.one(f"again{number}", [*prompt_of(40, number)], episode_id=f"e{number}")
    assert engine.scheduler.counters.finished == 18
    assert len(counter.programs) == warm


def test_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 128, limit 64.*generator\.context to at most 64"):
        JaxExecutor(CONFIG, GeneratorSettings(context=128), OLD)


def test_bfloat16_stays_close_to_the_learner() -> None:
    changes = {"compute_dtype": "bfloat16", "kv_windows": (64,), "prefill_chunks": (16,), "slots": 1}
    settings = SETTINGS.model_copy(update=changes)
    executor = JaxExecutor(CONFIG, settings, prepare_weights(TENSORS, CONFIG, settings))
    scheduler = Scheduler(executor, settings, version(0), ManualClock())
    answers = Answers()
    scheduler.submit(request("a", prompt_of(10), max_tokens=8, seed=3), answers("a"))
    while scheduler.step():
        continue
    completion = answers["a"]
    expected = learner_logprobs(prompt_of(10), completion, 1.0)
    assert np.abs(completion.logprobs - expected).max() < 0.2
    assert completion.logprobs.dtype == np.float32
