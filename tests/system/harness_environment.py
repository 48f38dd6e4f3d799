"""The environment of the kill tests: two turns, a reward that differs between the answers of any model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Variety:
    """Rewards different characters; ends after two answers, whatever they are."""

    async def reset(self, task: Task) -> Observation:
        self._answers: list[str] = []
        return Observation((Message("user", str(task.payload["number"])),))

    async def step(self, action: Action) -> Outcome:
        self._answers.append(action.text)
        if len(self._answers) < 2:
            return Outcome(observation=Observation((Message("tool", "go on"),)))
        return Outcome(reward=len(set("".join(self._answers))) / 16, terminated=True)

    async def close(self) -> None:
        pass

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        for number in range(num_tasks):
            yield {"task_id": f"v{number}", "payload": {"number": number + seed}}
