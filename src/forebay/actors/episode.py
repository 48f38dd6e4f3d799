"""One episode: reset to done, every token kept as it was sampled, every wait under a deadline.

Used by the actor pool, by held-out evaluation and by play; none of it knows a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from forebay.actors.boundary import DeadlinePassedError, FaultBoundary
from forebay.actors.stats import EpisodeLog
from forebay.chat import Chat, Conversation
from forebay.clock import Clock
from forebay.envs.outcomes import checked_observation, checked_outcome
from forebay.envs.protocol import Action, Environment, Observation, Outcome
from forebay.envs.registry import EnvironmentKind
from forebay.errors import EnvironmentFailure, GenerationError
from forebay.generation.protocol import Completion, GenerationRequest, Generator, GeneratorInfo
from forebay.trajectory import Finish, PolicyVersion, Sampling, StepRecord, Task, Trajectory

T = TypeVar("T")
_CLEAN_UP_S: Final = 5.0
_GENERATOR_GRACE_S: Final = 2.0


class StaleGeneratorError(GenerationError):
    """A generator sampled with older weights than were asked for."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What an episode is run for.

    Args:
        trajectory_id: Name of the trajectory that it becomes.
        episode_id: Name of this very run of it, for the generator; never used twice.
        run_id: The run that asked.
        incarnation: The learner's incarnation that dispatched the group.
        group_id: Its group.
        group_size: Members of the group.
        member: Its place in the group.
        attempt: 0 for the first try.
        min_version: No token may be sampled by an older version.
        seed: Seed of the run; every model call derives its own from it.
        asked_s: Wall clock at the claim.
    """

    trajectory_id: str
    episode_id: str
    run_id: str
    incarnation: int = 0
    group_id: str
    group_size: int = 1
    member: int = 0
    attempt: int = 0
    min_version: PolicyVersion = PolicyVersion(0, 0)
    seed: int = 0
    asked_s: float

    def derived_seed(self, what: str) -> int:
        """Return a 31-bit seed that no other member, attempt or purpose shares.

        Example:
            >>> one = Assignment(trajectory_id="t", episode_id="e", run_id="r", group_id="g", asked_s=0.0)
            >>> one.derived_seed("turn 0") != msgspec.structs.replace(one, member=1).derived_seed("turn 0")
            True
        """
        parts = (self.seed, self.group_id, self.member, self.attempt, what)
        return xxhash.xxh3_64_intdigest(msgspec.json.encode(parts)) & 0x7FFF_FFFF


class EpisodeRunner:
    """Runs episodes of any of its environments.

    Args:
        generator: What continues prompts.
        info: Its limits.
        chat: Tokenizer and template.
        environments: What tasks are posed by, by name.
        sampling: The distribution to sample.
        max_turn_tokens: Most tokens of one model turn.
        clock: Wall clock of the records; deadlines run on the event loop's clock.
        boundary: Where environment code runs.
        max_kv_staleness: KV older than this is computed again; None to keep it.

    Attributes:
        num_failed_closes: Environments that raised or hung when they were closed.
    """

    def __init__(
        self,
        *,
        generator: Generator,
        info: GeneratorInfo,
        chat: Chat,
        environments: Mapping[str, EnvironmentKind],
        sampling: Sampling,
        max_turn_tokens: int,
        clock: Clock,
        boundary: FaultBoundary,
        max_kv_staleness: int | None = None,
    ) -> None:
        self.generator = generator
        self.info = info
        self.chat = chat
        self.environments = environments
        self.sampling = sampling
        self.max_turn_tokens = max_turn_tokens
        self.clock = clock
        self.boundary = boundary
        self.max_kv_staleness = max_kv_staleness
        self.num_failed_closes = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def run(
        self,
        task: Task,
        assignment: Assignment,
        *,
        timeout_s: float = math.inf,
        log: EpisodeLog | None = None,
    ) -> Trajectory:
        """Run one episode.

        Consumes: a task. Waits for: the environment's code and the generator. Unblocked by: their answers,
            the step and episode deadlines, `timeout_s`. Produces: a trajectory, truncated if a deadline or
            the context ended it.

        Args:
            task: The problem.
            assignment: What it is run for.
            timeout_s: Time left for it, if less than the environment's episode_timeout_s.
            log: Where it notes what it has done, for callers that want to know if it fails.

        Raises:
            EnvironmentFailure: The environment raised or broke its contract, or there is none of that name.
            GenerationError: The generator failed or refused.
            ModelError: The chat template cannot render the conversation.
            RecordError: The generator's answer contradicts itself.
        """
        kind = self.environments.get(task.environment)
        if kind is None:
            known = ", ".join(sorted(self.environments))
            raise EnvironmentFailure("unknown environment", got=task.environment, limit=known)
        episode = _Episode(self, kind, task, assignment, timeout_s, log or EpisodeLog())
        try:
            return await episode.run()
        finally:
            # The result must not wait for an environment that takes its time to close.
            closing = asyncio.create_task(episode.clean_up(), name=f"close {assignment.episode_id}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait until the environments of ended episodes are closed."""
        if self._closing:
            await asyncio.wait(set(self._closing))


class _Episode:
    """The state of one running episode."""

    def __init__(
        self,
        runner: EpisodeRunner,
        kind: EnvironmentKind,
        task: Task,
        assignment: Assignment,
        timeout_s: float,
        log: EpisodeLog,
    ) -> None:
        self._runner = runner
        self._kind = kind
        self._task = task
        self._assignment = assignment
        self._conversation = Conversation(runner.chat, runner.sampling)
        self._environment: Environment | None = None
        self._log = log
        self._metrics: dict[str, float] = {}
        self._cached = False
        self._started_s = runner.clock.wall_s()
        self._deadline = _loop_time() + min(timeout_s, kind.settings.episode_timeout_s)

    async def run(self) -> Trajectory:
        try:
            finish = await self._interact()
        except DeadlinePassedError:
            finish = "timeout"
        return self._trajectory(finish)

    async def clean_up(self) -> None:
        """Close the environment and drop the KV cache; failures are counted, nothing waits for this."""
        await self._runner.boundary.settle(self._call_name(""))
        if self._cached:
            await self._tell_generator(self._runner.generator.release(self._assignment.episode_id))
        if self._environment is None:
            return
        try:
            await self._runner.boundary.call(
                self._environment.close, timeout_s=_CLEAN_UP_S, name=self._call_name("close")
            )
        except (DeadlinePassedError, EnvironmentFailure):
            self._runner.num_failed_closes += 1

    async def _interact(self) -> Finish:
        observation = await self._reset()
        max_turns = self._kind.settings.max_turns
        for turn in range(max_turns):
            prompt = self._conversation.observe(observation.messages)
            room = self._runner.info.context - len(prompt)
            if room <= 0:
                return "context"
            completion = await self._generate(self._request(prompt, room, turn, keep=turn + 1 < max_turns))
            outcome = await self._step(completion, turn)
            if outcome.terminated:
                return "terminated"
            if outcome.truncated:
                return "truncated"
            observation = outcome.observation
        return "truncated"

    def _request(
        self, prompt: npt.NDArray[np.int32], room_tokens: int, turn: int, *, keep: bool
    ) -> GenerationRequest:
        runner, assignment = self._runner, self._assignment
        return GenerationRequest(
            request_id=f"{assignment.episode_id}.{turn}",
            episode_id=assignment.episode_id,
            prompt=prompt,
            sampling=runner.sampling,
            max_tokens=min(runner.max_turn_tokens, room_tokens),
            stop_tokens=runner.chat.stop_tokens,
            seed=assignment.derived_seed(f"turn {turn}"),
            min_version=assignment.min_version,
            max_kv_staleness=runner.max_kv_staleness,
            deadline_s=self._left_s(),
            keep=keep,
        )

    async def _reset(self) -> Observation:
        seed = self._assignment.derived_seed("environment")

        async def reset() -> Observation:
            self._environment = self._kind.make(seed)
            return checked_observation(await self._environment.reset(self._task))

        began_s = self._log.enter("reset", _loop_time())
        try:
            return await self._call(reset, "reset")
        finally:
            self._log.reset_s = self._log.leave("reset", began_s, _loop_time()) - began_s

    async def _generate(self, request: GenerationRequest) -> Completion:
        self._cached = self._cached or request.keep
        limit = asyncio.timeout(self._left_s() + _GENERATOR_GRACE_S)
        self._log.asked_s = began_s = self._log.enter("generator", _loop_time())
        try:
            async with limit:
                completion = await self._runner.generator.generate(request)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self._tell_generator(self._runner.generator.abort(request.request_id))
            if limit.expired():
                raise GenerationError("generator did not answer by the request's deadline") from error
            raise
        finally:
            self._log.leave("generate", began_s, _loop_time())
        if completion.finish == "abort":
            raise GenerationError("generator aborted the request", got=request.request_id)
        oldest = min((span.version for span in completion.version_spans), default=request.min_version)
        if oldest < request.min_version:
            raise StaleGeneratorError(
                "generator sampled with older weights than were asked for",
                got=tuple(oldest),
                limit=tuple(request.min_version),
            )
        return completion

    async def _step(self, completion: Completion, turn: int) -> Outcome:
        self._log.num_action_tokens += len(completion.tokens)
        text = self._conversation.act(completion, turn)
        closed = self._runner.chat.is_closed(completion.tokens)
        action = Action(text=text, finish="stop" if closed else completion.finish)
        reward: float | None = None
        failed = False
        started_s = self._log.enter("environment", _loop_time())
        try:
            if completion.finish == "deadline":
                raise DeadlinePassedError("generator ran into the episode's deadline")
            outcome = await self._call(lambda: self._answer(action), "step")
            reward = outcome.reward
        except EnvironmentFailure:
            failed = True
            raise
        finally:
            ended_s = self._log.leave("environment", started_s, _loop_time())
            record = StepRecord(
                reward, completion.finish, completion.wait_s, completion.generate_s, ended_s - started_s
            )
            self._log.add(record, started_s, ended_s, failed=failed)
        self._metrics |= outcome.metrics
        return outcome

    async def _answer(self, action: Action) -> Outcome:
        assert self._environment is not None
        return checked_outcome(await self._environment.step(action))

    def _trajectory(self, finish: Finish) -> Trajectory:
        assignment = self._assignment
        rewards = [step.reward for step in self._log.steps if step.reward is not None]
        return Trajectory(
            trajectory_id=assignment.trajectory_id,
            run_id=assignment.run_id,
            incarnation=assignment.incarnation,
            group_id=assignment.group_id,
            group_size=assignment.group_size,
            member=assignment.member,
            attempt=assignment.attempt,
            task_id=self._task.task_id,
            environment=self._task.environment,
            sequences=self._conversation.sequences(),
            steps=tuple(self._log.steps),
            reward=math.fsum(rewards) if rewards else None,
            terminated=finish == "terminated",
            truncated=finish != "terminated",
            finish=finish,
            started_s=self._started_s,
            finished_s=self._runner.clock.wall_s(),
            admission_s=max(0.0, self._started_s - assignment.asked_s),
            metrics={**self._metrics, "branches": float(self._conversation.branches)},
            tokenizer=self._runner.chat.fingerprint,
            model=self._runner.info.model,
            reset_s=self._log.reset_s,
        )

    async def _call(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        timeout_s = min(self._kind.settings.step_timeout_s, self._left_s())
        return await self._runner.boundary.call(call, timeout_s=timeout_s, name=self._call_name(what))

    def _call_name(self, what: str) -> str:
        return f"{self._kind.name}/{self._assignment.episode_id}/{what}"

    def _left_s(self) -> float:
        left_s = self._deadline - _loop_time()
        if left_s <= 0.0:
            raise DeadlinePassedError("episode ran into its deadline")
        return left_s

    async def _tell_generator(self, notice: Awaitable[None]) -> None:
        """Deliver a notice that is only a courtesy: the generator forgets by itself too."""
        with contextlib.suppress(GenerationError, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_S):
                await notice


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
