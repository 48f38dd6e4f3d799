from __future__ import annotations

import asyncio

import numpy as np

from forebay.generation.protocol import Completion
from forebay.planner.traffic import Recorder, made_up, traffic_of
from forebay.store.bench.workload import make_branch, make_specs, make_trajectory
from forebay.store.protocol import Slot
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.wire import encode
from tests.unit.generation.fakes import request


class Answering:
    """Samples one token for each that it may, and had half of the prompt cached."""

    async def generate(self, asked: object) -> Completion:
        num_prompt = len(asked.prompt)  # type: ignore[attr-defined]
        tokens = np.ones(asked.max_tokens, np.int32)  # type: ignore[attr-defined]
        return Completion(
            tokens=tokens,
            logprobs=np.zeros(len(tokens), np.float32),
            version_spans=(),
            finish="length",
            num_prefilled=num_prompt - num_prompt // 2,
            num_cached=num_prompt // 2,
        )


def trajectory(name: str) -> Trajectory:
    """Return a trajectory of 100 tokens, all of them sampled."""
    (spec,) = make_specs(0, 1, 800)
    slot = Slot(
        group_id=spec.group_id,
        member=0,
        attempt=0,
        task=spec.task,
        group_size=spec.group_size,
        incarnation=0,
        min_version=PolicyVersion(0, 0),
        lease_expires_s=0.0,
        group_deadline_s=0.0,
        run_id=name,
    )
    return make_trajectory(make_branch(800), slot)


def test_what_episodes_asked_is_told_by_environment() -> None:
    async def scenario() -> None:
        recorder = Recorder(Answering())  # type: ignore[arg-type]
        await recorder.generate(request("a.0", [1] * 8, max_tokens=3, episode_id="a"))
        await recorder.generate(request("a.1", [1] * 20, max_tokens=5, episode_id="a"))
        await recorder.generate(request("b.0", [1] * 6, max_tokens=1, episode_id="b"))
        played = {"a": trajectory("run")}  # b has not ended
        (found,) = traffic_of(played, recorder).items()
        name, traffic = found
        assert (name, traffic.num_episodes, traffic.turns.values) == ("bench", 1, (2.0,))
        assert traffic.prompt_tokens.values == (8.0, 20.0)
        assert traffic.computed_tokens.values == (4.0, 10.0)
        assert traffic.sampled_tokens.values == (3.0, 5.0)
        assert (traffic.episode_tokens.mean, traffic.action_tokens.mean) == (100.0, 100.0)
        assert traffic.first_prompt_tokens is not None and traffic.observed_tokens is not None
        assert traffic.first_prompt_tokens.values == (8.0,)
        assert traffic.observed_tokens.values == (0.0,)  # everything in it was sampled
        assert traffic.trajectory_bytes.mean == len(encode(played["a"]))
        assert [[one.request_id for one in each] for each in recorder.conversations(["a"])] == [
            ["a.0", "a.1"]
        ]

    asyncio.run(scenario())


def test_prompts_that_are_made_up_fit_the_context_and_differ() -> None:
    asked = [one for (one,) in made_up(3, 100, 20, 7, 64)]
    assert {(len(one.prompt), one.max_tokens) for one in asked} == {(44, 20)}
    assert max(int(one.prompt.max()) for one in asked) < 7
    assert len({one.prompt.tobytes() for one in asked}) == 3
    ((long,),) = made_up(1, 100, 500, 7, 64)
    assert (len(long.prompt), long.max_tokens) == (1, 63)
