from __future__ import annotations

from typing import Any

import pytest

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import EpisodeRunner
from forebay.actors.evaluation import EvaluationReport, evaluate
from forebay.envs.protocol import Action, Outcome
from forebay.trajectory import PolicyVersion, Sampling
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
    generator: ScriptedGenerator, make: Any, *, seed: int = 0, concurrency: int = 4
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
        runner, TASKS, run_id="run", seed=seed, min_version=PolicyVersion(0, 3), concurrency=concurrency
    )


def test_mean_reward_and_its_interval() -> None:
    answers = {f"{i}+1": "#0" if i in (1, 5) else None for i in range(10)}

    def policy(prompt: str) -> str:
        return answers[prompt.split("<user>")[1].split("<end>")[0]] or solve(prompt)

    generator = ScriptedGenerator(policy=policy, version=PolicyVersion(0, 3))
    report = run_virtual(run(generator, lambda _: SlowCalculator()))
    assert report.reward == pytest.approx(0.8)
    # sqrt(0.8 * 0.2 * 10 / 9 / 10) * 1.96
    assert report.reward_high == pytest.approx(0.8 + 0.26133, abs=1e-5)
    assert (report.num_tasks, report.num_failed) == (10, 0)
    assert report.turns == pytest.approx((8 * 2 + 2 * 1) / 10)
    assert report.version == report.oldest_version == PolicyVersion(0, 3)


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
    assert (report.num_failed, report.reward) == (1, 1.0)
