from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.chat import Message
from forebay.envs.calculator import Calculator, call_tool, demonstrations, parse_expression
from forebay.envs.protocol import Action, Outcome
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task


def task(expression: object) -> Task:
    return Task(task_id="t", environment="calculator", payload={"expression": expression})


def play(expression: str, *texts: str, finish: str = "stop") -> list[Outcome]:
    async def main() -> list[Outcome]:
        environment = Calculator()
        observation = await environment.reset(task(expression))
        assert observation.messages == (Message("user", expression),)
        outcomes = [await environment.step(Action(text=text, finish=finish)) for text in texts]
        await environment.close()
        return outcomes

    return asyncio.run(main())


def said(outcome: Outcome) -> str:
    (message,) = outcome.observation.messages
    assert message.role == "tool"
    return message.content


def test_the_tool_works_from_left_to_right() -> None:
    first, second, last = play("17+25*3", "17+25=", "42*3=", "#126")
    assert (said(first), said(second)) == ("42", "126")
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert last.metrics == {"correct": 1.0, "calls": 2.0, "errors": 0.0}
    assert first.reward is None


@pytest.mark.parametrize(("answer", "reward"), [("#126", 1.0), ("#0126", 1.0), ("#92", 0.0), ("#-126", 0.0)])
def test_the_answer_is_checked_exactly(answer: str, reward: float) -> None:
    assert play("17+25*3", answer)[0].reward == reward


@pytest.mark.parametrize(
    "text",
    ["", "17+25", "17+25*3=", "17/5=", "x", "# 126", "#126 ", "1e9+1=", "٣+٣=", "9**9=", "__import__('os')=",
     "1" * 13 + "+1=", "17 + 25="],
)  # fmt: skip
def test_c78_anything_else_is_an_error_and_is_never_evaluated(text: str) -> None:
    outcome = play("17+25*3", text)[0]
    assert said(outcome) == "err"
    assert (outcome.reward, outcome.terminated) == (None, False)


def test_an_answer_that_was_cut_is_no_answer() -> None:
    assert said(play("17+25*3", "#126", finish="length")[0]) == "err"


def test_negative_numbers_can_be_worked_with() -> None:
    assert [said(o) for o in play("3-9*4", "3-9=", "-6*4=")[:2]] == ["-6", "-24"]
    assert play("3-9*4", "#-24")[0].reward == 1.0


def test_the_turn_limit_truncates_with_reward_0() -> None:
    outcomes = play("17+25*3", "x", "x", "x", "x")
    assert [o.truncated for o in outcomes] == [False, False, False, True]
    assert (outcomes[-1].reward, outcomes[-1].terminated) == (0.0, False)
    assert outcomes[-1].metrics == {"correct": 0.0, "calls": 0.0, "errors": 4.0}


@pytest.mark.parametrize("payload", ["1", "1+", "1+2+3+4+5+6+7+8+9+10", "1234567+1", "1**2", "1+2\n"])
def test_a_malformed_task_is_refused(payload: str) -> None:
    with pytest.raises(ConfigError, match="needs an expression like"):
        asyncio.run(Calculator().reset(task(payload)))
    with pytest.raises(EnvironmentFailure):
        asyncio.run(Calculator().reset(task(5)))


@given(st.integers(-(10**11), 10**11), st.sampled_from("+-*"), st.integers(-(10**11), 10**11))
def test_the_tool_is_exact(left: int, operator: str, right: int) -> None:
    expected = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert call_tool(f"{left}{operator}{right}=") == str(expected)


def test_generated_tasks_are_all_different_and_the_same_every_time() -> None:
    entries = list(Calculator.generate_tasks(500, 3))
    assert entries == list(Calculator.generate_tasks(500, 3))
    assert entries != list(Calculator.generate_tasks(500, 4))
    assert len({e["task_id"] for e in entries}) == len({e["payload"]["expression"] for e in entries}) == 500
    lengths = [len(parse_expression(e["payload"]["expression"]).terms) for e in entries]
    assert set(lengths) == {1, 2, 3}
    with pytest.raises(ConfigError, match="not enough different"):
        list(Calculator.generate_tasks(100, 0, max_operations=1, max_operand=1, max_factor=2))


def reward_of(expression: str, conversation: tuple[Message, ...]) -> float:
    outcomes = play(expression, *[m.content for m in conversation if m.role == "assistant"])
    replies = [m.content for m in conversation if m.role == "tool"]
    assert replies == [said(o) for o in outcomes[: len(replies)]]
    return outcomes[-1].reward or 0.0


def test_demonstrations_without_noise_are_perfect_and_with_noise_earn_what_is_said() -> None:
    tasks = [task(e["payload"]["expression"]) for e in Calculator.generate_tasks(400, 0)]

    def mean(noise: float) -> float:
        conversations = list(demonstrations(tasks, noise=noise, seed=1))
        return (
            sum(reward_of(t.payload["expression"], c) for t, c in zip(tasks, conversations, strict=True))
            / 400
        )

    assert mean(0.0) == 1.0
    # A mean over 1, 2 and 3 operations of 0.85 ** (operations + 1), and a few mistakes that mend themselves.
    assert 0.55 < mean(0.15) < 0.72
    assert list(demonstrations(tasks, noise=0.5, seed=1)) == list(demonstrations(tasks, noise=0.5, seed=1))
