"""The environment of the fairness test: two turns; every so many tasks one that always fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Uneven:
    """Ends after two answers.

    Args:
        broken_every: Every so many tasks, one whose every attempt fails; 0 for none.
    """

    def __init__(self, broken_every: int = 0) -> None:
        self._broken_every, self._turns = broken_every, 0

    async def reset(self, task: Task) -> Observation:
        number = int(task.payload["number"])
        if self._broken_every and number % self._broken_every == 0:
            raise ConnectionError("this task never works")
        return Observation((Message("user", str(number)),))

    async def step(self, action: Action) -> Outcome:
        self._turns += 1
        if self._turns < 2:
            return Outcome(observation=Observation((Message("tool", "go on"),)))
        return Outcome(reward=len(set(action.text)) / 16, terminated=True)

    async def close(self) -> None:
        pass

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        for number in range(num_tasks):
            yield {"task_id": f"u{number}", "payload": {"number": number}}
