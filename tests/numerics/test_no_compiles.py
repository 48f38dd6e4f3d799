"""After warm-up nothing compiles: not for any lengths, a last partial batch, or an input that comes late."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks.tiny_learner import TinyLearner
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings


@pytest.mark.parametrize(("shards", "num_steps"), [(1, 1000), (4, 40)])
def test_p5_nothing_compiles_in_steps_of_random_lengths(shards: int, num_steps: int) -> None:
    settings = BatchingSettings(max_length=32, rows=2 * shards, max_programs=3, min_row_length=8)
    ladder = build_ladder(settings, shards)
    rng = np.random.default_rng(0)
    seen = set()
    with TinyLearner(ladder, shards) as learner:
        for number in range(num_steps):
            # The second half also asks for logprobs, which the first had no use for.
            lengths = rng.integers(2, 33, rng.integers(1, 3 * shards + 1)).tolist()
            seen |= learner.step(lengths, scored=number >= num_steps // 2)
            assert learner.compiles_after_warmup == 0, (number, lengths)
        # Every program was called, so that none of them would have been compiled at its first call.
        assert seen == set(ladder)
        # The counter does see a program that was not planned.
        jax.block_until_ready(jax.jit(lambda x: x * 3 + number)(np.arange(5)))
        assert learner.compiles_after_warmup == 1
