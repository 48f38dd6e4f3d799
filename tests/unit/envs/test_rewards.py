from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.clock import SystemClock
from forebay.envs.protocol import Action, Environment, Outcome
from forebay.envs.registry import EnvironmentKind, load_environment
from forebay.envs.rewards import score_of
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Sampling, Task, Trajectory
from tests.unit.actors.support import CHAT, ScriptedGenerator

GRADING = "tests.unit.envs.grading_for_tests"
HANG_S = 100.0


def kind(function: str, **values: Any) -> EnvironmentKind:
    """A one-turn environment that pays 0.25 and is judged by a function."""
    defaults = {"entrypoint": "tests.unit.envs.misbehaving:PaysAQuarter", "reward": f"{GRADING}:{function}"}
    return load_environment(EnvironmentSettings(**(defaults | values)), SystemClock())


async def finish(environment: Environment, text: str, **payload: Any) -> Outcome:
    await environment.reset(Task(task_id="t", environment="e", payload={"number": 1} | payload))
    outcome = await environment.step(Action(text=text))
    await environment.close()
    return outcome


def judged(function: str, *texts: str, payload: dict[str, Any] | None = None, **values: Any) -> list[Any]:
    """Play an episode of one turn for each text, one after another; return outcomes and errors."""

    async def main() -> list[Any]:
        made = kind(function, **values)
        results: list[Any] = []
        try:
            await made.open()
            for text in texts:
                async with asyncio.timeout(HANG_S):
                    finishing = finish(made.make(0), text, **(payload or {}))
                    results += await asyncio.gather(finishing, return_exceptions=True)
        finally:
            await made.close()
        return results

    return asyncio.run(main())


def test_a_function_replaces_the_environments_reward_and_its_other_numbers_are_metrics() -> None:
    outcome = judged("words", "two words")[0]
    assert outcome.reward == 2.0
    assert outcome.metrics == {"turns": 1.0, "own": 0.25, "inner": 1.0}
    assert outcome.terminated


def test_or_adds_to_it() -> None:
    assert judged("words", "two words", reward_mode="add")[0].reward == 2.25


def test_an_episode_may_stay_without_a_reward() -> None:
    assert judged("unscored", "x", reward_mode="add")[0].reward == 0.25
    assert judged("unscored", "x")[0].reward is None


def test_a_coroutine_function_runs_in_the_event_loop() -> None:
    assert judged("patient", "x")[0].reward == 1.0


def test_rewards_before_the_end_are_dropped_or_kept_and_the_turn_limit_is_an_end() -> None:
    async def rewards(mode: str) -> list[float | None]:
        entrypoint = "tests.unit.envs.misbehaving:Good"
        made = kind("words_soon", entrypoint=entrypoint, reward_mode=mode, max_turns=2)
        environment = made.make(0)
        await environment.reset(Task(task_id="t", environment="e", payload={"number": 1}))
        outcomes = [await environment.step(Action(text=text)) for text in ("a", "bb cc")]
        await made.close()
        assert not outcomes[1].terminated
        return [outcome.reward for outcome in outcomes]

    assert asyncio.run(rewards("replace")) == [None, 3.0]
    assert asyncio.run(rewards("add")) == [0.5, 4.0]


def test_c15_a_result_that_is_no_reward_is_named_and_the_next_call_is_judged_as_ever() -> None:
    texts = ("text", "nan", "keys", "raise", "exit", "fine")
    *errors, fine = judged("faulty", *texts)
    assert fine.reward == 1.0
    assert all(isinstance(error, EnvironmentFailure) for error in errors)
    for error, message in zip(
        errors,
        (
            "faulty failed: .* must be a number, got str 'good'",
            "faulty must be finite, got nan",
            "faulty returned a dict without `reward`: .*score",
            "faulty failed: .* LookupError: no such answer",
            "faulty failed: environment worker .* ended",
        ),
        strict=True,
    ):
        assert re.search(message, str(error)), error


def test_a_coroutine_that_fails_is_named_and_ends_nothing_else() -> None:
    exited, raised, hung, fine = judged(
        "faulty_coroutine", "exit", "raise", "hang", "fine", reward_timeout_s=0.5
    )
    assert f"{GRADING}:faulty_coroutine failed: SystemExit: 9" in str(exited)
    assert f"{GRADING}:faulty_coroutine failed: TimeoutError" in str(raised)
    assert f"{GRADING}:faulty_coroutine did not return (limit 0.5 s)" in str(hung)
    assert fine.reward == 1.0


def test_c78_c41_a_function_that_hangs_is_killed_with_its_children_and_others_go_on(
    tmp_path: Path,
) -> None:
    async def main() -> list[Outcome | BaseException]:
        made = kind("faulty", reward_timeout_s=3.0, reward_processes=2)
        await made.open()
        pids = {"pids": str(tmp_path / "pids")}
        calls = [finish(made.make(0), text, **pids) for text in ("hang", *["fine"] * 6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await made.close()
        return results

    first, *others = asyncio.run(main())
    assert isinstance(first, EnvironmentFailure)
    assert f"{GRADING}:faulty did not return (limit 3 s)" in str(first)
    assert [outcome.reward for outcome in others if isinstance(outcome, Outcome)] == [1.0] * 6
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_reward_for_failures_makes_them_episodes_like_any_other() -> None:
    outcomes = judged(
        "faulty_coroutine", "hang", "raise", "fine", reward_on_failure=-1.0, reward_timeout_s=0.5
    )
    assert [outcome.reward for outcome in outcomes] == [-1.0, -1.0, 1.0]
    assert [outcome.metrics["reward_failed"] for outcome in outcomes] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrds", "cannot be imported: .*wrds.*Did you mean .*:words"),
        ("two_arguments", r"cannot be called: .*Define it as \(task, messages, outcome\)"),
        ("NOT_A_FUNCTION", "is no function .got int"),
    ],
)
def test_what_cannot_be_called_is_refused_at_the_start(function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(function)


def test_settings_that_could_never_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"package\.module:function, got 'words'"):
        kind("words", reward="words")
    with pytest.raises(ValueError, match=r"reward_timeout_s=10\.0 exceeds step_timeout_s=5\.0"):
        kind("words", step_timeout_s=5.0)


def test_scores_of_every_kind() -> None:
    assert score_of(np.float32(0.5), "f") == (0.5, {})
    assert score_of(True, "f") == (1.0, {})
    assert score_of({"reward": None, "tries": np.int64(2), "none": None}, "f") == (None, {"tries": 2.0})
    for value in ("1.0", [1.0], b"1", object()):
        with pytest.raises(TypeError, match="must be a number"):
            score_of(value, "f")


def test_c78_hostile_answers_earn_nothing_touch_nothing_and_change_no_later_reward(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    answers = ("#3", f"\\pi*__import__('os').system('touch {canary}')", "9**9**9**9", "#3")

    async def main() -> list[float | None]:
        settings = EnvironmentSettings(max_turns=1, reward=f"{GRADING}:exact")
        made = load_environment(settings, SystemClock())
        rewards = []
        for text in answers:
            environment = made.make(0)
            await environment.reset(Task(task_id="t", environment="e", payload={"expression": "1+2"}))
            rewards.append((await environment.step(Action(text=text))).reward)
            await environment.close()
        await made.close()
        return rewards

    assert asyncio.run(main()) == [1.0, 0.0, 0.0, 1.0]
    assert not canary.exists()


def test_c38_an_episode_whose_grader_hangs_fails_alone_under_the_runner(tmp_path: Path) -> None:
    async def main() -> tuple[Trajectory | BaseException, ...]:
        made = kind("faulty", reward_timeout_s=2.0)
        await made.open()
        said = iter(["hang", "fine"])
        generator = ScriptedGenerator(policy=lambda prompt: next(said), delay_s=0.0)
        runner = EpisodeRunner(
            generator=generator,
            info=await generator.info(),
            chat=CHAT,
            environments={made.name: made},
            sampling=Sampling(),
            max_turn_tokens=16,
            clock=SystemClock(),
            boundary=FaultBoundary(1.0),
        )
        task = Task(task_id="t", environment=made.name, payload={"number": 1, "pids": str(tmp_path / "pids")})
        names = [
            Assignment(trajectory_id=f"t{i}", episode_id=f"e{i}", run_id="r", group_id="g", asked_s=0.0)
            for i in range(2)
        ]
        results = await asyncio.gather(*(runner.run(task, name) for name in names), return_exceptions=True)
        await runner.close()
        await made.close()
        return tuple(results)

    failed, scored = asyncio.run(main())
    assert isinstance(failed, EnvironmentFailure)
    assert "faulty did not return" in str(failed)
    assert isinstance(scored, Trajectory)
    assert (scored.reward, scored.finish) == (1.0, "terminated")
