"""A question that a small pretrained model answers half of the time: swap two words."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task

_WORDS = """
apple bird boat book bread bridge camera castle chair cloud coffee corn desk dream engine farm fire
fish flower forest garden glass gold green hammer happy honey horse island jacket kitchen ladder
lemon light market milk mirror moon morning mountain music ocean orange paper pencil piano queen
rain river road salt school seven silver sister snow stone sugar summer table train village water
window winter wood yellow
"""
WORDS = _WORDS.split()
# One example in the prompt fixes the form of the answer, so that what is left to learn is the answer.
EXAMPLE = (
    Message("system", "Swap the words."),
    Message("user", "tree house"),
    Message("assistant", "house tree"),
)


class Swap:
    """One turn an episode; the reward is 1 for the two words in the other order and nothing else, or 0."""

    async def reset(self, task: Task) -> Observation:
        """Give the task's two words."""
        self.words = task.payload["words"]
        return Observation((*EXAMPLE, Message("user", " ".join(self.words))))

    async def step(self, action: Action) -> Outcome:
        """Compare the answer with the words in the other order."""
        said = action.text.strip().split(" ")
        return Outcome(
            reward=float(said == self.words[::-1]),
            terminated=True,
            metrics={"says_both": float(sorted(said) == sorted(self.words))},
        )

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Draw ordered pairs of different words, none twice."""
        pairs = list(itertools.permutations(WORDS, 2))
        for first, second in random.Random(seed).sample(pairs, num_tasks):
            yield {"task_id": f"{first}-{second}", "payload": {"words": [first, second]}}
