"""Fakes with real behavior: a virtual event loop, a scripted generator, a store with groups."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.chat import Message, small_chat
from forebay.envs.calculator import Calculator, parse_expression
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.envs.registry import EnvironmentKind
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ForebayError, GenerationError
from forebay.generation.protocol import BadRequestError, Completion, GenerationRequest, GeneratorInfo
from forebay.staleness import Choice
from forebay.store import GroupSpec, StoreSettings, TakenGroup, open_store
from forebay.store.rules import RuleStore
from forebay.trajectory import PolicyVersion, Task, VersionSpan

T = TypeVar("T")
EPOCH_S = 1e9
CHAT = small_chat()
ORIGIN = PolicyVersion(0, 0)


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the loop's time to it."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise AssertionError("deadlock: nothing is scheduled and nothing can happen")
        self.jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when there is nothing to do, and then at once.

    Calls that go to threads are made inline, so that time never overtakes them.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        selector = _JumpingSelector()
        selector.jump = self._jump
        super().__init__(selector)

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except ForebayError as error:
            future.set_exception(error)
        return future

    def _jump(self, duration_s: float) -> None:
        self._now_s += max(duration_s, 1e-6)


class LoopClock:
    """A clock that reads the running loop's time."""

    def wall_s(self) -> float:
        return EPOCH_S + asyncio.get_running_loop().time()

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nothing may block the loop")

    async def asleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def solve(prompt: str) -> str:
    """The perfect calculator policy: what to say next, given the text of a prompt of the small chat."""
    user = prompt.split("<user>")[1].split("<end>")[0]
    answers = [part.split("<end>")[0] for part in prompt.split("<tool>")[1:]]
    expression = parse_expression(user)
    current = answers[-1] if answers else str(expression.first)
    terms = expression.terms[len(answers) :]
    return f"{current}{terms[0][0]}{terms[0][1]}=" if terms else f"#{current}"


def stuck(prompt: str) -> str:
    """A policy that never answers."""
    return "1+1="


Policy = Callable[[str], str]


@dataclass
class ScriptedGenerator:
    """A generator that says what a function of the prompt says, and obeys the protocol otherwise.

    A request waits until `version` is what it asks for, at most until its deadline.
    """

    policy: Policy = solve
    context: int = 128
    delay_s: float = 0.05
    version: PolicyVersion = ORIGIN
    down: bool = False
    cut_logprobs: bool = False
    served_version: PolicyVersion | None = None
    vocabulary: int = CHAT.vocabulary
    requests: list[GenerationRequest] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    num_info: int = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        if self.down:
            raise GenerationError("connection refused")
        if len(request.prompt) + request.max_tokens > self.context:
            raise BadRequestError(
                "too long", got=len(request.prompt) + request.max_tokens, limit=self.context
            )
        self.requests.append(request)
        waited_s = 0.0
        while self.served_version is None and self.version < request.min_version:
            if request.deadline_s is not None and waited_s >= request.deadline_s:
                return self._completion(np.zeros(0, np.int32), "deadline")
            await asyncio.sleep(0.1)
            waited_s += 0.1
        await asyncio.sleep(self.delay_s)
        if self.down:
            raise GenerationError("connection reset")
        text = self.policy(CHAT.decode(request.prompt))
        tokens = np.append(CHAT.encode(text), np.int32(CHAT.stop_tokens[0])).astype(np.int32)
        finish = "stop" if len(tokens) <= request.max_tokens else "length"
        return self._completion(tokens[: request.max_tokens], finish)

    def _completion(self, tokens: np.ndarray, finish: Any) -> Completion:
        version = self.served_version or self.version
        return Completion(
            tokens=tokens,
            logprobs=np.full(len(tokens) - self.cut_logprobs, -0.5, np.float32),
            version_spans=(VersionSpan(len(tokens), version, version),) if len(tokens) else (),
            finish=finish,
            wait_s=0.01,
            generate_s=self.delay_s,
        )

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def release(self, episode_id: str) -> None:
        self.released.append(episode_id)

    async def info(self) -> GeneratorInfo:
        self.num_info += 1
        if self.down:
            raise GenerationError("connection refused")
        return GeneratorInfo(
            version=self.version, context=self.context, vocabulary=self.vocabulary, model="scripted"
        )

    async def close(self) -> None:
        pass


class SlowCalculator(Calculator):
    """A calculator whose tool takes a second."""

    async def step(self, action: Action) -> Outcome:
        outcome = await super().step(action)
        if outcome.observation.messages:
            await asyncio.sleep(1.0)
        return outcome


def kind(
    make: Callable[[int], Any] = lambda _: SlowCalculator(), name: str = "calculator", **settings: Any
) -> EnvironmentKind:
    """An environment for the pool, without the registry."""

    async def close() -> None:
        pass

    return EnvironmentKind(name, EnvironmentSettings(name=name, **settings), make, close)


def calculator_task(expression: str = "17+25*3", environment: str = "calculator", task_id: str = "t") -> Task:
    return Task(task_id=task_id, environment=environment, payload={"expression": expression})


def group(
    serial: int,
    task: Task | None = None,
    *,
    size: int = 4,
    minimum: int | None = None,
    deadline_s: float = 300.0,
    min_version: PolicyVersion = ORIGIN,
) -> GroupSpec:
    return GroupSpec(
        group_id=f"g{serial}",
        serial=serial,
        task=task or calculator_task(),
        group_size=size,
        min_group_size=size if minimum is None else minimum,
        min_version=min_version,
        deadline_s=deadline_s,
        member_bytes=1 << 16,
    )


def make_store(groups: Sequence[GroupSpec], clock: Any = None) -> RuleStore:
    store = open_store(StoreSettings(engine="memory"), "run", clock or LoopClock())
    store.rewind(0)
    store.dispatch(groups, incarnation=0)
    return store


def take_all(store: RuleStore) -> tuple[TakenGroup, ...]:
    """Take every settled group."""

    def settled(groups: Sequence[Any]) -> Choice:
        return Choice(take=tuple(g.group_id for g in groups if g.settled))

    return store.take(incarnation=0, choose=settled, timeout_s=0.0)[0]


def make_pool(store: Any, generator: Any, *kinds: EnvironmentKind, **settings: Any) -> ActorPool:
    defaults: dict[str, Any] = {"episodes_per_process": 16, "drain_s": 5.0, "max_turn_tokens": 32}
    return ActorPool(
        store=store,
        generator=generator,
        chat=CHAT,
        environments={k.name: k for k in kinds or (kind(),)},
        settings=ActorSettings(**{**defaults, **settings}),
        run_seed=7,
        name="actor-0",
        clock=LoopClock(),
    )


async def run_until(pool: ActorPool, done: Callable[[], bool], *, limit_s: float = 600.0) -> None:
    """Run a pool until a condition holds, then drain it; virtual seconds."""
    running = asyncio.create_task(pool.run())
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not done() and not running.done() and loop.time() < deadline_s:
        await asyncio.sleep(0.05)
    pool.drain()
    await running
    assert done(), f"not done after {limit_s} s: {pool.stats()}"


class Scripted:
    """An environment of which each verb is a function; the rest is a one-step task that pays 1."""

    def __init__(self, reset: Any = None, step: Any = None, close: Any = None) -> None:
        self._reset, self._step, self._close = reset, step, close

    async def reset(self, task: Task) -> Observation:
        if self._reset:
            return await self._reset(task)
        return Observation((Message("user", task.payload.get("expression", "1+1")),))

    async def step(self, action: Action) -> Outcome:
        if self._step:
            return await self._step(action)
        return Outcome(reward=1.0, terminated=True)

    async def close(self) -> None:
        if self._close:
            await self._close()
