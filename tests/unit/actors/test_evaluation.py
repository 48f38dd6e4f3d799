from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import EpisodeRunner
from forebay.actors.evaluation import EvaluationReport, evaluate
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.trajectory import PolicyVersion, Sampling, Task
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

TASKS = [calculator_task(f"{i}+1", task_id=f"t{i}") for i in range(10)]


async def run(
    generator: ScriptedGenerator, make: Any, *, seed: int = 0, concurrency: int = 4, num_samples: int = 1
) -> EvaluationReport:
    used = kind(make)
    runner = EpisodeRunner(
        generator=generator,
        info=await generator.info(),
        chat=CHAT,
        environments={used.name: used},
        sampling=Sampling(temperature=0.0),
        max_turn_tokens=16,
        clock=LoopClock(),
        boundary=FaultBoundary(1.0),
    )
    return await evaluate(
        runner,
        TASKS,
        run_id="run",
        seed=seed,
        min_version=PolicyVersion(0, 3),
        concurrency=concurrency,
        num_samples=num_samples,
    )


def sums(wrong: tuple[int, ...]) -> Callable[[str], str]:
    """A policy that answers all tasks but some."""
    answers = {f"{i}+1": "#0" if i in wrong else None for i in range(10)}
    return lambda prompt: answers[prompt.split("<user>")[1].split("<end>")[0]] or solve(prompt)


def test_mean_reward_and_its_interval() -> None:
    generator = ScriptedGenerator(policy=sums(wrong=(1, 5)), version=PolicyVersion(0, 3))
    report = run_virtual(run(generator, lambda _: SlowCalculator()))
    score = report.score
    assert score.reward == pytest.approx(0.8)
    # Wilson's interval of 8 in 10, as R's binom::binom.wilson(8, 10) has it
    assert (score.method, score.reward_low, score.reward_high) == (
        "wilson",
        pytest.approx(0.4901625, abs=1e-6),
        pytest.approx(0.9433178, abs=1e-6),
    )
    assert (score.num_tasks, score.num_episodes, score.num_failed) == (10, 10, 0)
    assert score.turns == pytest.approx((8 * 2 + 2 * 1) / 10)
    assert report.version == report.oldest_version == PolicyVersion(0, 3)
    assert (score.pass_at, report.causes) == ({}, {})
    assert report.environments == {TASKS[0].environment: score}


def test_several_samples_of_a_task_have_seeds_of_their_own_and_give_pass_at_k() -> None:
    generator = ScriptedGenerator(policy=sums(wrong=(1, 5)), version=PolicyVersion(0, 3))
    report = run_virtual(run(generator, lambda _: SlowCalculator(), num_samples=3))
    score = report.score
    assert (score.num_tasks, score.num_episodes) == (10, 30)
    assert len({request.episode_id for request in generator.requests}) == 30
    assert len({request.seed for request in generator.requests}) == len(generator.requests)
    assert score.pass_at == {"1": pytest.approx(0.8), "2": pytest.approx(0.8), "3": pytest.approx(0.8)}
    # the samples of a task agree, so that 30 episodes are worth 10
    assert score.reward_low == pytest.approx(0.4901625, abs=1e-6)
    assert report.rewards[f"{TASKS[1].environment}/t1"] == (0.0, 0.0, 0.0)


def test_seeds_depend_on_the_evaluation_seed_alone() -> None:
    seeds = []
    for seed, concurrency in ((0, 1), (0, 10), (1, 4)):
        generator = ScriptedGenerator(version=PolicyVersion(0, 3))
        run_virtual(run(generator, lambda _: SlowCalculator(), seed=seed, concurrency=concurrency))
        seeds.append(sorted(r.seed for r in generator.requests))
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_failing_environment_is_in_no_mean() -> None:
    async def crash(action: Action) -> Outcome:
        raise ValueError("broken")

    made = iter(range(100))
    report = run_virtual(
        run(
            ScriptedGenerator(version=PolicyVersion(0, 3)),
            lambda _: Scripted(step=crash) if next(made) == 2 else SlowCalculator(),
        )
    )
    assert (report.score.num_failed, report.score.reward, report.score.num_tasks) == (1, 1.0, 10)
    [(cause, count)] = report.causes.items()
    assert count == 1 and "ValueError: broken" in cause


def test_an_environment_that_hangs_in_reset_is_named() -> None:
    async def hang(task: Task) -> Observation:
        await asyncio.sleep(1e6)
        raise AssertionError

    report = run_virtual(run(ScriptedGenerator(version=PolicyVersion(0, 3)), lambda _: Scripted(reset=hang)))
    assert report.score.reward is None and report.score.num_failed == 10
    assert report.causes == {f"{TASKS[0].environment}: no reward, ended by timeout after 0 turns": 10}
