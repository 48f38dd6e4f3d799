from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forebay.clock import SystemClock
from forebay.envs.adapters.reasoning import Reasoning, _evaluator_of
from forebay.envs.protocol import Action, Outcome
from forebay.envs.registry import load_environment, load_task_sets, try_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.trajectory import Task

reasoning_gym = pytest.importorskip("reasoning_gym")

# Datasets whose scorer gives the answer to `eval`, or to SymPy, which does.
EVALUATING = {
    "binary_matrix": "python",
    "bitwise_arithmetic": "python",
    "countdown": "sympy",
    "intermediate_integration": "sympy",
    "n_queens": "python",
    "number_sorting": "python",
    "polynomial_multiplication": "sympy",
    "puzzle24": "sympy",
    "simple_integration": "sympy",
    "spiral_matrix": "python",
    "string_insertion": "python",
}
HOSTILE = [
    r'\pi*__import__("os").system("touch canary")',
    '__import__("os").system("touch canary")',
    '__import__("os").system("touch canary")!',
    'S(\'__import__("os").system("touch canary")\')',
    'sin(\'__import__("os").system("touch canary")\')',
    "(lambda: open('canary', 'w'))()",
    "[open(name, 'w') for name in ['canary']]",
    "().__class__.__base__.__subclasses__()",
    "9**9**9**9",
    "'a'*10**10",
    "[0]*10**10",
    "1e999999999",
    "9" * 100_000,
    "(" * 5_000,
    "-" * 1_900 + "1",
]


def seeded(seed: int) -> Task:
    return Task(task_id="t", environment="e", payload={"seed": seed})


def asked(dataset: str, seed: int = 5, **kwargs: Any) -> tuple[Reasoning, str, str]:
    environment = Reasoning(dataset=dataset, **kwargs)
    observation = environment.reset(seeded(seed))
    return environment, observation.messages[-1].content, str(environment._entry["answer"])


def judge(environment: Reasoning, text: str) -> Outcome:
    return environment.step(Action(text=text))


def test_the_right_answer_scores_one_and_the_question_is_that_of_the_seed() -> None:
    environment, question, answer = asked("chain_sum", options={"max_terms": 2, "max_digits": 1})
    assert question == asked("chain_sum", options={"max_terms": 2, "max_digits": 1})[1]
    assert question != asked("chain_sum", seed=6, options={"max_terms": 2, "max_digits": 1})[1]
    outcome = judge(environment, answer)
    assert (outcome.reward, outcome.terminated) == (1.0, True)
    assert outcome.metrics == {"correct": 1.0, "refused": 0.0, "overran": 0.0}
    assert judge(environment, f"I think <answer>7</answer> no <answer> {answer}\n</answer>").reward == 1.0
    assert judge(environment, str(int(answer) + 1)).reward == 0.0


def test_partial_credit_can_be_turned_off() -> None:
    near = "it is {}"
    partial, _, answer = asked("chain_sum")
    exact, _, _ = asked("chain_sum", exact=True)
    share = judge(partial, near.format(answer)).reward
    assert share is not None
    assert 0.0 < share < 1.0
    assert judge(exact, near.format(answer)).reward == 0.0


def test_a_turn_that_was_cut_scores_only_if_it_may() -> None:
    for whole_turns, reward in ((True, 0.0), (False, 1.0)):
        environment, _, answer = asked("chain_sum", whole_turns=whole_turns)
        assert environment.step(Action(text=answer, finish="length")).reward == reward


def test_which_scorers_evaluate_answers_is_known() -> None:
    kinds = {name: _evaluator_of(dataset) for name, (dataset, _) in reasoning_gym.factory.DATASETS.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == EVALUATING


@pytest.mark.parametrize("dataset", EVALUATING)
def test_the_answers_of_evaluating_datasets_still_score(dataset: str) -> None:
    environment, _, answer = asked(dataset)
    if dataset == "countdown":
        answer = str(environment._entry["metadata"]["expression"])
    outcome = judge(environment, answer)
    assert (outcome.reward, outcome.metrics["refused"]) == (1.0, 0.0)


@pytest.mark.parametrize("dataset", [*EVALUATING, "chain_sum", "coin_flip"])
def test_c78_hostile_answers_score_nothing_and_do_nothing(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment, _, answer = asked(dataset, score_cpu_s=0.3)
    right = str(environment._entry["metadata"]["expression"]) if dataset == "countdown" else answer
    before = judge(environment, right).reward
    for hostile in HOSTILE:
        reward = judge(environment, hostile).reward
        # Some datasets give 0.01 for an attempt of any kind.
        assert reward is not None
        assert reward <= 0.011, hostile
    assert not (tmp_path / "canary").exists()
    assert judge(environment, right).reward == before == 1.0


def test_c78_a_scorer_that_takes_for_ever_is_stopped() -> None:
    environment, _, _ = asked("coin_flip", score_cpu_s=0.1)
    outcome = judge(environment, "1e999999999")
    assert (outcome.reward, outcome.metrics["overran"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "chain_sums"}, "no reasoning-gym dataset called 'chain_sums'. Did you mean chain_sum"),
        ({"dataset": "chain_sum", "options": {"max_digit": 1}}, "cannot make chain_sum: .*max_digit"),
        ({"dataset": "chain_sum", "options": {"min_terms": 9, "max_terms": 2}}, "cannot make chain_sum"),
        ({"dataset": "composite"}, "cannot make composite"),
        ({"dataset": "chain_sum", "score_cpu_s": 0}, "score_cpu_s"),
    ],
)
def test_what_cannot_work_is_one_clear_line(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Reasoning(**kwargs)
    assert "\n" not in str(caught.value)


def test_questions_are_asked_in_workers_and_typos_refused_before_that() -> None:
    async def main() -> None:
        mine = EnvironmentSettings(
            entrypoint="reasoning-gym", kwargs={"dataset": "spell_backward"}, num_tasks=20, name="backward"
        )
        kind = load_environment(mine, SystemClock())
        await kind.open()
        environment = kind.make(0)
        task = load_task_sets(mine).train[0]
        question = (await environment.reset(task)).messages[0].content
        _, same_question, answer = asked("spell_backward", seed=task.payload["seed"])
        assert question == same_question
        assert (await environment.step(Action(text=answer))).reward == 1.0
        await environment.close()
        await kind.close()
        typo = EnvironmentSettings(entrypoint="reasoning-gym", kwargs={"dataset": "spell_backwards"})
        with pytest.raises(ConfigError, match="Did you mean spell_backward"):
            await try_environment(load_environment(typo, SystemClock()))

    asyncio.run(main())


def test_demonstrations_are_questions_with_answers_and_some_mistakes() -> None:
    tasks = [seeded(seed) for seed in range(40)]
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}

    def right(noise: float) -> list[bool]:
        shown = Reasoning.demonstrate(tasks, noise=noise, seed=1, dataset="chain_sum", options=options)
        said = [conversation[-1].content for conversation in shown]
        true = [asked("chain_sum", seed=seed, options=options)[2] for seed in range(40)]
        return [a == b for a, b in zip(said, true, strict=True)]

    assert all(right(0.0))
    assert 10 < sum(right(0.5)) < 35
    with pytest.raises(ConfigError, match="graph_color has no answers"):
        list(Reasoning.demonstrate(tasks[:1], noise=0.0, seed=0, dataset="graph_color"))
