"""One episode at a time, without a store."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.chat import Message
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.errors import EnvironmentFailure, GenerationError
from forebay.trajectory import Sampling, Task, Trajectory
from tests.unit.actors.support import (
    CHAT,
    LoopClock,
    Scripted,
    ScriptedGenerator,
    SlowCalculator,
    calculator_task,
    kind,
    run_virtual,
    solve,
)


async def play(
    generator: ScriptedGenerator, environment: Any = None, *, max_turn_tokens: int = 32, **settings: Any
) -> Trajectory:
    used = kind(lambda _: environment or SlowCalculator(), **settings)
    runner = EpisodeRunner(
        generator=generator,
        info=await generator.info(),
        chat=CHAT,
        environments={used.name: used},
        sampling=Sampling(),
        max_turn_tokens=max_turn_tokens,
        clock=LoopClock(),
        boundary=FaultBoundary(grace_s=1.0),
    )
    assignment = Assignment(
        trajectory_id="t", episode_id="t.0", run_id="run", group_id="g", asked_s=LoopClock().wall_s() - 3.0
    )
    try:
        return await runner.run(calculator_task(), assignment)
    finally:
        await runner.close()


def test_times_and_rewards_of_an_episode() -> None:
    trajectory = run_virtual(play(ScriptedGenerator()))
    assert (trajectory.reward, trajectory.finish, trajectory.terminated) == (1.0, "terminated", True)
    assert [step.reward for step in trajectory.steps] == [None, None, 1.0]
    assert [round(step.environment_s, 6) for step in trajectory.steps] == [1.0, 1.0, 0.0]
    assert (trajectory.admission_s, trajectory.reset_s) == (3.0, 0.0)
    assert trajectory.finished_s - trajectory.started_s == pytest.approx(2.15)
    assert trajectory.metrics == {"branches": 0.0, "calls": 2.0, "correct": 1.0, "errors": 0.0}
    assert trajectory.model == "scripted"


def test_c11_a_turn_is_cut_to_what_the_context_still_holds() -> None:
    class Counting(Scripted):
        async def reset(self, task: Task) -> Observation:
            return Observation((Message("user", "1" * 24),))  # 28 tokens with bos, roles and end

    generator = ScriptedGenerator(policy=lambda prompt: "123456789", context=32)
    trajectory = run_virtual(play(generator, Counting(), max_turn_tokens=8))
    assert [request.max_tokens for request in generator.requests] == [4]
    assert (trajectory.finish, trajectory.reward) == ("terminated", 1.0)
    assert trajectory.steps[0].finish == "length"


def test_c11_an_episode_without_room_ends_and_keeps_its_reward() -> None:
    async def answer(action: Action) -> Outcome:
        assert action.finish == "length"
        return Outcome(observation=Observation((Message("tool", "1"),)), reward=0.25)

    generator = ScriptedGenerator(policy=lambda prompt: "1" * 40, context=32)
    trajectory = run_virtual(play(generator, Scripted(step=answer)))
    assert (trajectory.finish, trajectory.truncated, trajectory.reward) == ("context", True, 0.25)
    assert len(generator.requests) == 1
    assert trajectory.sequences[0].tokens.shape == (32,)


def test_c08_a_sampled_end_is_trained_and_an_added_one_is_not() -> None:
    words = iter(["17+25=", "42*3=9999999999999999999999999999999999999", "#126"])
    trajectory = run_virtual(play(ScriptedGenerator(policy=lambda prompt: next(words)), max_turn_tokens=8))
    (sequence,) = trajectory.sequences
    trained = CHAT.decode(sequence.tokens[sequence.action_mask()])
    assert trained == "17+25=<end>42*3=999#126<end>"
    assert "42*3=999<end><tool>err<end>" in CHAT.decode(sequence.tokens)


def test_c07_only_what_was_sampled_is_trained() -> None:
    (sequence,) = run_virtual(play(ScriptedGenerator())).sequences
    untrained = CHAT.decode(sequence.tokens[~sequence.action_mask()])
    assert untrained == (
        "<bos><user>17+25*3<end><assistant><tool>42<end><assistant><tool>126<end><assistant>"
    )


def test_a_turn_limit_truncates() -> None:
    trajectory = run_virtual(play(ScriptedGenerator(policy=lambda p: "1+1="), max_turns=2))
    assert (trajectory.finish, trajectory.reward, len(trajectory.steps)) == ("truncated", None, 2)


def test_the_last_possible_turn_keeps_no_cache() -> None:
    generator = ScriptedGenerator(policy=lambda p: "1+1=")
    run_virtual(play(generator, max_turns=2))
    assert [request.keep for request in generator.requests] == [True, False]
    assert generator.released == ["t.0"]


def test_an_episode_deadline_keeps_what_was_earned() -> None:
    async def answer(action: Action) -> Outcome:
        await asyncio.sleep(3.0)
        return Outcome(observation=Observation((Message("tool", "1"),)), reward=0.5)

    trajectory = run_virtual(
        play(ScriptedGenerator(), Scripted(step=answer), episode_timeout_s=7.0, step_timeout_s=7.0)
    )
    assert (trajectory.finish, trajectory.reward) == ("timeout", 1.0)
    assert [step.reward for step in trajectory.steps] == [0.5, 0.5, None]
    assert trajectory.finished_s - trajectory.started_s == pytest.approx(7.0)


def test_a_reset_that_hangs_is_a_timeout_without_tokens() -> None:
    async def hang(task: Task) -> Observation:
        await asyncio.sleep(1e6)
        raise AssertionError

    trajectory = run_virtual(play(ScriptedGenerator(), Scripted(reset=hang), step_timeout_s=2.0))
    assert (trajectory.finish, trajectory.sequences, trajectory.reward) == ("timeout", (), None)


def test_a_generator_that_ignores_its_deadline_is_the_one_to_blame() -> None:
    generator = ScriptedGenerator(delay_s=1e6)
    with pytest.raises(GenerationError, match="did not answer by the request's deadline"):
        run_virtual(play(generator, episode_timeout_s=5.0, step_timeout_s=5.0))
    assert generator.aborted == ["t.0.0"]


def test_the_environment_is_closed_however_the_episode_ends() -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def crash(action: Action) -> Outcome:
        raise RuntimeError("boom")

    with pytest.raises(EnvironmentFailure, match=re.escape("raised RuntimeError: boom")):
        run_virtual(play(ScriptedGenerator(), Scripted(step=crash, close=close)))
    run_virtual(play(ScriptedGenerator(), Scripted(close=close)))
    assert closed == ["closed", "closed"]


def test_a_result_does_not_wait_for_an_environment_to_close() -> None:
    async def main() -> float:
        async def close() -> None:
            await asyncio.sleep(1e6)

        used = kind(lambda _: Scripted(close=close))
        generator = ScriptedGenerator()
        runner = EpisodeRunner(
            generator=generator,
            info=await generator.info(),
            chat=CHAT,
            environments={used.name: used},
            sampling=Sampling(),
            max_turn_tokens=8,
            clock=LoopClock(),
            boundary=FaultBoundary(grace_s=1.0),
        )
        assignment = Assignment(
            trajectory_id="t", episode_id="t.0", run_id="r", group_id="g", asked_s=LoopClock().wall_s()
        )
        await runner.run(calculator_task(), assignment)
        done_s = asyncio.get_running_loop().time()
        await runner.close()
        assert runner.num_failed_closes == 1
        return done_s

    assert run_virtual(main()) < 1.0


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(EnvironmentFailure, match=r"got calculator, limit other"):
        run_virtual(play(ScriptedGenerator(policy=solve), name="other"))
