"""The datasets of reasoning-gym: one question, one answer, scored by the dataset's own verifier."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from forebay.envs.adapters.answers import Evaluator, TookTooLongError, evaluator_of, limited, may_run
from forebay.envs.adapters.extras import optional_module, seeded_tasks, unknown_name
from forebay.envs.protocol import Action, Message, Observation, Outcome, Task
from forebay.errors import ConfigError

_EXTRA: Final = "envs-reasoning"
_TAGGED: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# Opening these takes long, and they make an entry when it is asked for: one serves all seeds. Others may make
# all entries at once, so that each seed gets a dataset of one entry.
_OPENED_ONCE: Final = frozenset(
    {"arc_agi", "codeio", "figlet_font", "group_anagrams", "rearc", "spell_backward"}
)
_ENOUGH_ENTRIES: Final = 2**31 - 1


class Reasoning:
    """One question of a reasoning-gym dataset.

    The answer is what stands between the last `<answer>` and `</answer>`, or the whole turn where there are
    none. The reward is the dataset's score, from 0 to 1; some give a little for a near miss.

    Answers are hostile text. Where the dataset's scorer evaluates them as Python, only plain ones reach it
    and others score 0, counted as `refused`. Every scorer runs within limits of time and memory, beyond
    which the answer scores 0, counted as `overran`.

    Args:
        dataset: Name of the dataset, for instance `chain_sum`.
        options: Its settings, for instance `{max_digits = 1}`.
        instructions: System message; empty says nothing.
        exact: Whether anything but a full score counts as 0.
        whole_turns: Whether a turn that the token limit cut scores 0.
        score_cpu_s: Most processor time of one scoring, seconds.
    """

    blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dataset: str,
        options: dict[str, Any] | None = None,
        instructions: str = "",
        exact: bool = False,
        whole_turns: bool = True,
        score_cpu_s: float = 1.0,
    ) -> None:
        if not score_cpu_s > 0.0:
            raise ConfigError("score_cpu_s leaves no time", got=score_cpu_s, limit="> 0")
        self._dataset = dataset
        self._options = json.dumps(options or {}, sort_keys=True)
        self._instructions = instructions
        self._exact = exact
        self._whole_turns = whole_turns
        self._score_cpu_s = score_cpu_s
        _entry(dataset, self._options, 0)

    @staticmethod
    def preload(*, dataset: str, options: dict[str, Any] | None = None, **_: Any) -> None:
        """Import reasoning-gym and open the dataset, for all workers at once."""
        _entry(dataset, json.dumps(options or {}, sort_keys=True), 0)

    def reset(self, task: Task) -> Observation:
        """Ask the task's question."""
        self._source, self._entry = _entry(self._dataset, self._options, _seed_of(task))
        opening = (Message("system", self._instructions),) if self._instructions else ()
        return Observation((*opening, Message("user", self._entry["question"])))

    def step(self, action: Action) -> Outcome:
        """Score the answer."""
        tagged = _TAGGED.findall(action.text)
        answer = (tagged[-1] if tagged else action.text).strip()
        scored = not self._whole_turns or action.finish == "stop"
        evaluator = _evaluator_of(self._source.__class__)
        refused = scored and answer != str(self._entry["answer"]).strip() and may_run(answer, evaluator)
        score, overran = self._score(answer) if scored and not refused else (0.0, False)
        return Outcome(
            reward=float(score >= 1.0) if self._exact else score,
            terminated=True,
            metrics={
                "correct": float(score >= 1.0),
                "refused": float(refused),
                "overran": float(overran),
            },
        )

    def close(self) -> None:
        """Hold nothing."""

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield tasks, each with the seed of a question."""
        return seeded_tasks(num_tasks, seed)

    @staticmethod
    def demonstrate(
        tasks: Iterable[Task],
        *,
        noise: float,
        seed: int,
        dataset: str,
        options: dict[str, Any] | None = None,
        instructions: str = "",
        **_: Any,
    ) -> Iterator[tuple[Message, ...]]:
        """Yield question and answer of each task, for a supervised warm start.

        Args:
            tasks: What is demonstrated.
            noise: Share of the answers that are those of another task.
            seed: Same seed: same mistakes.
            dataset: As for the class.
            options: As for the class.
            instructions: As for the class.
        """
        rng = random.Random(seed)
        opening = (Message("system", instructions),) if instructions else ()
        encoded = json.dumps(options or {}, sort_keys=True)
        other = ""
        for task in tasks:
            _, entry = _entry(dataset, encoded, _seed_of(task))
            if entry["answer"] is None:
                raise ConfigError(
                    f"{dataset} has no answers to imitate", remedy="Train without a warm start."
                )
            answer = str(entry["answer"])
            said = other if rng.random() < noise and other else answer
            other = answer
            yield (*opening, Message("user", entry["question"]), Message("assistant", said))

    def _score(self, answer: str) -> tuple[float, bool]:
        """Return the score, and whether the scorer ran out of time or memory."""

        def score() -> float:
            return float(self._source.score_answer(answer=answer, entry=self._entry))

        try:
            return limited(score, self._score_cpu_s), False
        except (TookTooLongError, MemoryError):
            return 0.0, True
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            # A scorer that trips over an answer has not found it right.
            return 0.0, False


@functools.cache
def _evaluator_of(dataset_class: Any) -> Evaluator:
    return evaluator_of(dataset_class.score_answer)


@functools.lru_cache(maxsize=8)
def _opened(dataset: str, options: str, seed: int, size: int) -> Any:
    reasoning_gym = optional_module("reasoning_gym", _EXTRA)
    known = reasoning_gym.factory.DATASETS
    if dataset not in known:
        raise unknown_name("a reasoning-gym dataset", dataset, known)
    try:
        return reasoning_gym.create_dataset(dataset, **json.loads(options), seed=seed, size=size)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning-gym cannot make {dataset}: {error}") from error


def _entry(dataset: str, options: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a dataset and the entry that a seed means: entry i is a function of the dataset's seed + i."""
    if dataset in _OPENED_ONCE:
        source = _opened(dataset, options, 0, _ENOUGH_ENTRIES)
        return source, source[seed]
    source = _opened(dataset, options, seed, 1)
    return source, source[0]


def _seed_of(task: Task) -> int:
    return int(task.payload.get("seed", task.seed))
