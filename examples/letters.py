"""An environment of one's own: the model is asked for a letter and should say nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Letters:
    """One turn an episode; the reward is the share of the answer that is the letter asked for."""

    async def reset(self, task: Task) -> Observation:
        """Ask for the task's letter."""
        self.letter = task.payload["letter"]
        return Observation((Message("user", self.letter),))

    async def step(self, action: Action) -> Outcome:
        """Score the answer; await tools, browsers or other services here."""
        share = action.text.count(self.letter) / max(len(action.text), 1)
        return Outcome(reward=share, terminated=True, metrics={"letters": len(action.text)})

    async def close(self) -> None:
        """Free what the episode holds; called in any case."""

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Make tasks; or leave this out and set `tasks` to a JSONL file."""
        for index in range(num_tasks):
            yield {"task_id": f"letter-{index}", "payload": {"letter": "abcdefghij"[(index + seed) % 10]}}
