"""What a generator is asked by a run: conversations, recorded while its episodes are played, or made up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from forebay.generation.protocol import Completion, GenerationRequest, Generator, GeneratorInfo
from forebay.planner.distribution import sampled
from forebay.planner.profile_records import Traffic
from forebay.trajectory import Sampling, Trajectory
from forebay.wire import encode

# The requests of one episode, in order.
Conversation = tuple[GenerationRequest, ...]
# Ids that any vocabulary has, for a generator that does not tell how many it has.
_SAFE_VOCABULARY: Final = 256


class Recorder:
    """A generator that keeps what it is asked and what it answers.

    Args:
        generator: Who answers.

    Attributes:
        calls: By episode, requests with their answers, in order.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.calls: defaultdict[str, list[tuple[GenerationRequest, Completion]]] = defaultdict(list)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt."""
        completion = await self._generator.generate(request)
        self.calls[request.episode_id].append((request, completion))
        return completion

    async def abort(self, request_id: str) -> None:
        """End a running request."""
        await self._generator.abort(request_id)

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache of an episode."""
        await self._generator.release(episode_id)

    async def info(self) -> GeneratorInfo:
        """Return the version served and the limits."""
        return await self._generator.info()

    async def close(self) -> None:
        """Release what the generator holds."""
        await self._generator.close()

    def conversations(self, episodes: Sequence[str]) -> tuple[Conversation, ...]:
        """Return what some episodes asked, in the order in which they were begun; those without are left out.

        Args:
            episodes: Their ids.
        """
        wanted = set(episodes)
        return tuple(
            tuple(request for request, _ in calls)
            for episode, calls in self.calls.items()
            if episode in wanted and calls
        )


def traffic_of(played: Mapping[str, Trajectory], recorder: Recorder) -> dict[str, Traffic]:
    """Return what episodes asked, by environment.

    Args:
        played: Finished episodes, by the id that the generator knew them by.
        recorder: What they asked.
    """
    by_environment: defaultdict[str, list[str]] = defaultdict(list)
    for episode, trajectory in played.items():
        if recorder.calls[episode]:
            by_environment[trajectory.environment].append(episode)
    return {
        name: _traffic([played[one] for one in episodes], [recorder.calls[one] for one in episodes])
        for name, episodes in by_environment.items()
    }


def _traffic(
    trajectories: Sequence[Trajectory], asked: Sequence[Sequence[tuple[GenerationRequest, Completion]]]
) -> Traffic:
    calls = [call for episode in asked for call in episode]
    return Traffic(
        num_episodes=len(trajectories),
        turns=sampled(float(len(episode)) for episode in asked),
        prompt_tokens=sampled(float(len(request.prompt)) for request, _ in calls),
        computed_tokens=sampled(float(_computed(*call)) for call in calls),
        sampled_tokens=sampled(float(len(completion.tokens)) for _, completion in calls),
        episode_tokens=sampled(float(sum(len(one.tokens) for one in t.sequences)) for t in trajectories),
        action_tokens=sampled(float(t.num_action_tokens) for t in trajectories),
        trajectory_bytes=sampled(float(len(encode(t))) for t in trajectories),
        first_prompt_tokens=sampled(float(len(episode[0][0].prompt)) for episode in asked),
        observed_tokens=sampled(between) if (between := list(_observed(trajectories, asked))) else None,
    )


def _observed(
    trajectories: Sequence[Trajectory], asked: Sequence[Sequence[tuple[GenerationRequest, Completion]]]
) -> Iterator[float]:
    """Yield, for every call but an episode's first, the tokens of the trajectory that came before it."""
    for trajectory, episode in zip(trajectories, asked, strict=True):
        later_calls = len(episode) - 1
        if later_calls:
            tokens = sum(len(one.tokens) for one in trajectory.sequences)
            unsampled = tokens - trajectory.num_action_tokens - len(episode[0][0].prompt)
            yield from [max(0.0, unsampled / later_calls)] * later_calls


def _computed(request: GenerationRequest, completion: Completion) -> int:
    told = completion.num_prefilled or completion.num_cached
    return completion.num_prefilled if told else len(request.prompt)


def made_up(
    number: int, prompt_tokens: int, sampled_tokens: int, vocabulary: int, context: int
) -> tuple[Conversation, ...]:
    """Return conversations of one random prompt each.

    Args:
        number: How many.
        prompt_tokens: Tokens of a prompt.
        sampled_tokens: Tokens of an answer.
        vocabulary: Ids below this may stand in a prompt; 0 if it is not known.
        context: Most tokens of both; 0 if it is not known.

    Example:
        >>> [(request,)] = made_up(1, 40, 8, 100, 32)
        >>> len(request.prompt), request.max_tokens
        (24, 8)
    """
    rng = np.random.default_rng(1)
    answer = min(sampled_tokens, context - 1) if context else sampled_tokens
    length = min(prompt_tokens, context - answer) if context else prompt_tokens
    return tuple(
        (
            GenerationRequest(
                request_id=f"made-up-{index}",
                prompt=made_up_prompt(rng, length, vocabulary),
                sampling=Sampling(),
                max_tokens=answer,
                seed=index,
            ),
        )
        for index in range(number)
    )


def made_up_prompt(rng: np.random.Generator, length: int, vocabulary: int) -> npt.NDArray[np.int32]:
    """Return [length] random int32 ids below `vocabulary`."""
    return rng.integers(0, vocabulary or _SAFE_VOCABULARY, length, dtype=np.int32)
