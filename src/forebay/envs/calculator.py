"""The calculator-tool environment: one operation a tool call, and an answer that is checked exactly.

The task `17+25*3` is evaluated from left to right. The model writes `17+25=`, the tool answers `42`; the
model writes `42*3=`, the tool answers `126`; the model writes `#126`, which is right. The tool knows one
operation of two integers per call; anything else gets `err`. The model's text is matched, never evaluated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import xxhash

from forebay.chat import Message
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task

_INTEGER: Final = "-?[0-9]{1,12}"
_CALL: Final = re.compile(f"({_INTEGER})([-+*])({_INTEGER})=")
_ANSWER: Final = re.compile(f"#({_INTEGER})")
_EXPRESSION: Final = re.compile("[0-9]{1,6}(?:[-+*][0-9]{1,6}){1,8}")
_TERM: Final = re.compile("([-+*])([0-9]+)")
_ERROR: Final = "err"
INSTRUCTIONS: Final = (
    "work out the sum from left to right. the tool does one step: write 17+25= and read the result. "
    "an answer is written #42"
)


class Expression(NamedTuple):
    """A chain of operations, worked out from left to right."""

    first: int
    terms: tuple[tuple[str, int], ...]

    def value(self) -> int:
        """Return the exact result.

        Example:
            >>> parse_expression("17+25*3").value()
            126
        """
        result = self.first
        for operator, operand in self.terms:
            result = operate(result, operator, operand)
        return result


def parse_expression(text: str) -> Expression:
    """Read an expression such as `17+25*3`.

    Raises:
        ConfigError: It is not one to nine integers of at most six digits joined by `+`, `-` or `*`.
    """
    if not _EXPRESSION.fullmatch(text):
        raise ConfigError(
            "a calculator task needs an expression like 17+25*3",
            got=repr(text[:80]),
            limit="2 to 9 integers of at most 6 digits, joined by + - *",
        )
    terms = tuple((operator, int(operand)) for operator, operand in _TERM.findall(text))
    return Expression(int(re.split("[-+*]", text, maxsplit=1)[0]), terms)


def operate(left: int, operator: str, right: int) -> int:
    """Return one operation of two integers."""
    if operator == "+":
        return left + right
    return left - right if operator == "-" else left * right


def call_tool(text: str) -> str:
    """Return what the calculator answers to a call; `err` if it is not one.

    Example:
        >>> call_tool("42*3="), call_tool("42*3*2=")
        ('126', 'err')
    """
    call = _CALL.fullmatch(text)
    return str(operate(int(call[1]), call[2], int(call[3]))) if call else _ERROR


class Calculator:
    """One episode of the calculator-tool environment.

    Reward 1 for the exact answer and 0 for another one, or for none within the turn limit.

    Args:
        extra_turns: Turns allowed beyond the calls that the task needs; the answer itself takes one.
        instructions: Whether a system message explains the tool first.
    """

    def __init__(self, *, extra_turns: int = 2, instructions: bool = False) -> None:
        if extra_turns < 1:
            raise ConfigError("extra_turns leaves no turn for the answer", got=extra_turns, limit=">= 1")
        self._extra_turns = extra_turns
        self._opening = _opening(instructions)

    async def reset(self, task: Task) -> Observation:
        """Pose the expression in the task's payload."""
        text = task.payload.get("expression")
        if not isinstance(text, str):
            raise EnvironmentFailure("a calculator task needs a payload with `expression`", got=task.payload)
        expression = parse_expression(text)
        self._answer = expression.value()
        self._turns_left = len(expression.terms) + self._extra_turns
        self._calls = self._errors = 0
        return Observation((*self._opening, Message("user", text)))

    async def step(self, action: Action) -> Outcome:
        """Judge an answer, or let the tool answer a call."""
        self._turns_left -= 1
        complete = action.finish == "stop"
        answer = _ANSWER.fullmatch(action.text) if complete else None
        if answer:
            correct = float(int(answer[1]) == self._answer)
            return Outcome(reward=correct, terminated=True, metrics=self._metrics(correct))
        reply = call_tool(action.text) if complete else _ERROR
        self._calls += reply != _ERROR
        self._errors += reply == _ERROR
        if not self._turns_left:
            return Outcome(reward=0.0, truncated=True, metrics=self._metrics(0.0))
        return Outcome(observation=Observation((Message("tool", reply),)))

    async def close(self) -> None:
        """Hold nothing."""

    @staticmethod
    def generate_tasks(
        num_tasks: int,
        seed: int,
        *,
        max_operations: int = 3,
        max_operand: int = 99,
        max_factor: int = 9,
    ) -> Iterator[dict[str, Any]]:
        """Yield tasks of 1 to `max_operations` operations, all different.

        Args:
            num_tasks: How many.
            seed: Same seed and limits: same tasks.
            max_operations: Most operations of a task.
            max_operand: Largest number that is added or subtracted.
            max_factor: Largest number multiplied by.

        Raises:
            ConfigError: The limits do not allow that many different tasks.
        """
        rng = random.Random(seed)
        seen: set[str] = set()
        for _ in range(100 * num_tasks):
            if len(seen) == num_tasks:
                return
            expression = _draw(rng, rng.randint(1, max_operations), max_operand, max_factor)
            if expression not in seen:
                seen.add(expression)
                task_id = f"calc-{xxhash.xxh3_64_hexdigest(expression.encode())[:12]}"
                yield {"task_id": task_id, "payload": {"expression": expression}}
        if len(seen) < num_tasks:
            raise ConfigError(
                "not enough different calculator tasks",
                got=len(seen),
                limit=num_tasks,
                remedy="Ask for fewer.",
            )

    @staticmethod
    def demonstrate(
        tasks: Iterable[Task], *, noise: float, seed: int, instructions: bool = False
    ) -> Iterator[tuple[Message, ...]]:
        """Yield a conversation per task, for a supervised warm start; see `demonstrations`."""
        for conversation in demonstrations(tasks, noise=noise, seed=seed):
            yield (*_opening(instructions), *conversation)

    def _metrics(self, correct: float) -> dict[str, float]:
        return {"correct": correct, "calls": float(self._calls), "errors": float(self._errors)}


def demonstrations(tasks: Iterable[Task], *, noise: float, seed: int) -> Iterator[tuple[Message, ...]]:
    """Yield a conversation per task, for a supervised warm start, with mistakes at a given rate.

    A mistake changes one model turn (a digit, an operator, a malformed call, an early answer, a skipped
    operation); the tool answers what was written, and the rest follows from its answer. A policy that
    imitates them well earns about (1 - noise) ** (operations + 1).

    Args:
        tasks: Calculator tasks.
        noise: Probability of a mistake per model turn, in [0, 1).
        seed: Same seed: same mistakes.
    """
    if not 0.0 <= noise < 1.0:
        raise ConfigError("noise must lie in [0, 1)", got=noise)
    rng = random.Random(seed)
    for task in tasks:
        yield tuple(_demonstrate(task.payload["expression"], noise, rng))


def _opening(instructions: bool) -> tuple[Message, ...]:
    return (Message("system", INSTRUCTIONS),) if instructions else ()


def _draw(rng: random.Random, num_operations: int, max_operand: int, max_factor: int) -> str:
    text = str(rng.randint(0, max_operand))
    for _ in range(num_operations):
        operator = rng.choice("+-*")
        text += operator + str(rng.randint(2, max_factor) if operator == "*" else rng.randint(1, max_operand))
    return text


def _demonstrate(text: str, noise: float, rng: random.Random) -> Iterator[Message]:
    expression = parse_expression(text)
    yield Message("user", text)
    current = str(expression.first)
    terms = list(expression.terms)
    turns_left = len(terms) + 2
    while turns_left:
        turns_left -= 1
        said = f"{current}{terms[0][0]}{terms[0][1]}=" if terms else f"#{current}"
        if rng.random() < noise:
            said = _mistaken(said, current, terms, rng)
        yield Message("assistant", said)
        if _ANSWER.fullmatch(said):
            return
        reply = call_tool(said)
        if turns_left:
            yield Message("tool", reply)
        if reply != _ERROR:
            current = reply
            terms = terms[1:]


def _mistaken(said: str, current: str, terms: list[tuple[str, int]], rng: random.Random) -> str:
    """Return a turn with one mistake in it."""
    digits = [index for index, character in enumerate(said) if character.isdigit()]
    where = rng.choice(digits)
    wrong_digit = said[:where] + rng.choice("0123456789".replace(said[where], "")) + said[where + 1 :]
    if not terms:
        return wrong_digit
    operator, operand = terms[0]
    mistakes = [
        wrong_digit,
        f"{current}{rng.choice('+-*'.replace(operator, ''))}{operand}=",
        said[:-1],
        f"#{current}",
    ]
    if len(terms) > 1:
        mistakes.append(f"{current}{terms[1][0]}{terms[1][1]}=")
    return rng.choice(mistakes)
