"""Hypothesis strategies shared by the property tests."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from forebay.staleness import Fork
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    Sequence,
    StepRecord,
    Trajectory,
    VersionSpan,
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,30}", fullmatch=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e9)
counts = st.integers(0, 2**53 - 1)
versions = st.builds(PolicyVersion, st.integers(0, 3), st.integers(0, 100))
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 1000),
    logprob_kind=st.sampled_from(["processed", "raw"]),
)
steps = st.builds(
    StepRecord,
    reward=st.none() | finite,
    finish=st.text(max_size=8),
    generator_wait_s=seconds,
    generate_s=seconds,
    environment_s=seconds,
)


@st.composite
def version_spans(draw: st.DrawFn, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Draw runs that together cover `num_tokens`, with a cache no newer than the token."""
    cuts = sorted(draw(st.sets(st.integers(1, num_tokens - 1), max_size=4))) if num_tokens > 1 else []
    edges = [0, *cuts, num_tokens] if num_tokens else [0]
    spans = []
    for start, stop in itertools.pairwise(edges):
        kv_version, version = sorted((draw(versions), draw(versions)))
        spans.append(VersionSpan(stop - start, version, kv_version))
    return tuple(spans)


@st.composite
def sequences(
    draw: st.DrawFn,
    num_steps: int = 3,
    max_tokens: int = 40,
    sampling: st.SearchStrategy[Sampling] = samplings,
) -> Sequence:
    """Draw one branch of up to `max_tokens` tokens."""
    num_tokens = draw(st.integers(1, max_tokens))
    edges = sorted(draw(st.sets(st.integers(0, num_tokens), max_size=8))) if num_steps else []
    spans = tuple(
        ActionSpan(start, stop, draw(st.integers(0, num_steps - 1)))
        for start, stop in zip(edges[::2], edges[1::2], strict=False)
    )
    num_actions = sum(span.stop - span.start for span in spans)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    return Sequence(
        tokens=rng.integers(0, 2**31 - 1, num_tokens, dtype=np.int32),
        action_spans=spans,
        behavior_logprobs=-rng.exponential(5.0, num_actions).astype(np.float32),
        version_spans=draw(version_spans(num_actions)),
        sampling=draw(sampling),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Draw a trajectory of any shape that the records allow, small enough to be quick."""
    episode_steps = tuple(draw(st.lists(steps, max_size=3)))
    group_size = draw(st.integers(1, 2**31))
    return Trajectory(
        trajectory_id=draw(names),
        run_id=draw(names),
        incarnation=draw(counts),
        group_id=draw(names),
        group_size=group_size,
        member=draw(st.integers(0, group_size - 1)),
        attempt=draw(counts),
        task_id=draw(names),
        environment=draw(names),
        sequences=tuple(draw(st.lists(sequences(len(episode_steps)), max_size=3))),
        steps=episode_steps,
        reward=draw(st.none() | finite),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        finish=draw(st.sampled_from(["terminated", "truncated", "context", "timeout", "aborted"])),
        started_s=draw(finite),
        finished_s=draw(finite),
        admission_s=draw(seconds),
        metrics=draw(st.dictionaries(st.text(max_size=8), finite, max_size=3)),
        tokenizer=draw(st.text(max_size=16)),
        model=draw(st.text(max_size=16)),
        reset_s=draw(st.none() | seconds),
    )


@st.composite
def fork_histories(draw: st.DrawFn, max_incarnation: int = 3, max_version: int = 30) -> tuple[Fork, ...]:
    """Draw where each incarnation after the first began."""
    incarnation = draw(st.integers(0, max_incarnation))
    return tuple(Fork(i, draw(st.integers(0, max_version))) for i in range(1, incarnation + 1))
