"""What an environment keeps: between episodes, between concurrent ones, and after it was cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay.envs.conformance.episodes import MAX_TURNS, answers
from forebay.envs.conformance.findings import Finding
from forebay.envs.conformance.holdings import measure
from forebay.envs.conformance.subject import Play, Session, Subject, Turn
from forebay.envs.protocol import Action
from forebay.envs.worker import WorkerEnvironment
from forebay.trajectory import Task

_EPISODES = 3
_REMEDIES = {
    "tasks": "Await or cancel in close() what the episode has started.",
    "threads": "End the episode's threads in close(), or share one pool over the class.",
    "processes": "End them in close(); blocking=true also kills what is left at a deadline.",
    "files": "Close them in close().",
    "sockets": "Close them in close(), or share a client over the class.",
    "directories": "Delete them in close(), or use tempfile.TemporaryDirectory.",
}


_NAMES = {
    "tasks": "tasks of the event loop",
    "directories": "temporary files or directories",
    **{kind: kind for kind in ("threads", "processes", "sockets")},
    "files": "open files",
}


async def check_determinism(subject: Subject, tasks: Sequence[Task]) -> list[Finding]:
    """Play the same answers on the same task twice, then two tasks at once; compare turn by turn.

    Raises:
        CallFailedError: A call failed.
    """
    turns = min(subject.kind.settings.max_turns, MAX_TURNS)
    posed = [tasks[0], tasks[1 % len(tasks)]]
    said = [answers(index, turns) for index in range(2)]
    alone = [await subject.play(task, words) for task, words in zip(posed, said, strict=True)]
    again = [await subject.play(task, words) for task, words in zip(posed, said, strict=True)]
    difference = first_difference(alone[0], again[0]) or first_difference(alone[1], again[1])
    if difference:
        remedy = "Draw from Task.seed and the payload alone, so that a group compares answers and not luck."
        what = f"the same answers to the same task led elsewhere: {difference}"
        return [Finding("determinism", "warning", what, remedy)]
    found = [Finding("determinism", "ok", "the same answers to the same task led to the same rewards")]
    together = await _interleaved(subject, posed, said)
    difference = first_difference(alone[0], together[0]) or first_difference(alone[1], together[1])
    if difference:
        remedy = "Keep what an episode knows in self, not in the class, the module or a shared file."
        what = f"two episodes at once disturb one another: {difference}"
        return [*found, Finding("isolation", "fault", what, remedy)]
    return [*found, Finding("isolation", "ok", "two episodes at once did not disturb one another")]


def first_difference(one: Play, other: Play) -> str:
    """Return where two episodes part, as text; empty if they do not."""
    for number, (left, right) in enumerate(zip(one.turns, other.turns, strict=False)):
        for name, a, b in zip(
            ("messages", "reward", "end", "metrics"), _facts(left), _facts(right), strict=True
        ):
            if a != b:
                where = f"step {number}" if number else "reset"
                return f"{where} of {one.task.task_id}: {name} {a!r:.120} and then {b!r:.120}"
    if len(one.turns) != len(other.turns):
        return f"{one.task.task_id} took {len(one.turns) - 1} steps and then {len(other.turns) - 1}"
    return ""


async def check_cancellation(subject: Subject, task: Task) -> list[Finding]:
    """Cancel reset and step while they wait, as a deadline does; then close, twice.

    Raises:
        CallFailedError: A call failed that was not cancelled.
    """
    found = [*await _cancel(subject, task, "reset"), *await _cancel(subject, task, "step")]
    fresh = Session(subject, task)
    tried = await subject.attempt(fresh.environment.close, "close", " before reset")
    if tried.error is not None:
        remedy = "close is called in any case, also when reset never ran."
        found.append(Finding("close", "fault", f"close before reset raised {tried.reason}", remedy))
    await subject.play(task, ())
    return found or [Finding("cancellation", "ok", "cancelled calls end, and close works after them, twice")]


async def check_leftovers(subject: Subject, task: Task, temporary: Path) -> list[Finding]:
    """Play several episodes and see what there is more of.

    Raises:
        CallFailedError: A call failed.
    """
    said = answers(0, min(subject.kind.settings.max_turns, MAX_TURNS))
    await subject.play(task, said)
    before = measure(temporary)
    for _ in range(_EPISODES):
        await subject.play(task, said)
    await asyncio.sleep(0)
    grown = measure(temporary, before).more_than(before, _EPISODES)
    found = [
        Finding("leftovers", "fault", f"{_EPISODES} episodes left {_NAMES[kind]}: {names}", _REMEDIES[kind])
        for kind, names in grown.items()
    ]
    what = f"{_EPISODES} episodes left no tasks, threads, processes, files or sockets behind"
    return found or [Finding("leftovers", "ok", what)]


def judge_stalls(subject: Subject) -> Iterator[Finding]:
    """Say which calls have kept the event loop from everything else."""
    stalls = [stall for stall in subject.watch.stalls if stall.call.startswith(("reset", "step", "close"))]
    remedy = (
        "Set blocking=true to run it in worker processes, or await instead; import early what loads slowly."
    )
    if stalls:
        longest = max(stalls, key=lambda stall: stall.duration_s)
        what = f"{longest.call} blocked the event loop for {longest.duration_s:.1f} s, at {longest.where}"
        yield Finding("blocking", "fault" if len(stalls) > 1 else "warning", what, remedy)
    elif isinstance(subject.kind.make(0), WorkerEnvironment):
        yield Finding("blocking", "ok", "runs in worker processes")
    else:
        yield Finding("blocking", "ok", f"no call blocked the event loop for {subject.request.blocked_s:g} s")


def judge_speed(subject: Subject) -> Iterator[Finding]:
    """Say how long calls took."""
    parts = []
    for verb in ("reset", "step"):
        times = sorted(subject.durations_s[verb])
        if times:
            parts.append(f"{verb} {_ms(times[len(times) // 2])} (median), {_ms(times[-1])} (longest)")
    yield Finding("speed", "ok", "; ".join(parts))


async def _interleaved(subject: Subject, tasks: Sequence[Task], said: Sequence[list[str]]) -> list[Play]:
    """Play several episodes turn by turn in alternation."""
    sessions = [Session(subject, task, " (two at once)") for task in tasks]
    turns: list[list[Turn]] = [[await session.reset()] for session in sessions]
    for round_ in range(max(map(len, said))):
        for session, words, seen in zip(sessions, said, turns, strict=True):
            if not session.ended and round_ < len(words):
                seen.append(await session.step(Action(text=words[round_])))
    for session in sessions:
        await session.close()
    return [
        Play(task, tuple(seen), session.ended)
        for task, seen, session in zip(tasks, turns, sessions, strict=True)
    ]


async def _cancel(subject: Subject, task: Task, verb: str) -> list[Finding]:
    session = Session(subject, task)
    if verb == "step":
        await session.reset()
        call: Awaitable[Any] = session.environment.step(Action(text="1"))
    else:
        call = session.environment.reset(task)
    running = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=subject.request.grace_s)
    found = []
    if not done:
        what = f"a cancelled {verb} still runs after {subject.request.grace_s:g} s"
        remedy = "Let CancelledError through, without shield; a run leaves such a call behind and counts it."
        found.append(Finding("cancellation", "fault", what, remedy))
    elif not running.cancelled() and (error := running.exception()) is not None:
        what = f"a cancelled {verb} raised {type(error).__name__}: {error!s:.120}"
        found.append(Finding("cancellation", "warning", what, "Let CancelledError through."))
    for time in ("", ", the second time,"):
        tried = await subject.attempt(session.environment.close, "close", f" after a cancelled {verb}{time}")
        if tried.timed_out or tried.error is not None:
            how = "did not return" if tried.timed_out else f"raised {tried.reason}"
            remedy = "close is called in any case, and must free what there is, also half-made."
            found.append(Finding("close", "fault", f"close after a cancelled {verb}{time} {how}", remedy))
            break
    return found


def _facts(turn: Turn) -> tuple[Any, ...]:
    outcome = turn.outcome
    if outcome is None:
        return turn.messages, None, None, None
    metrics = {name: value for name, value in outcome.metrics.items() if not math.isnan(value)}
    return turn.messages, outcome.reward, (outcome.terminated, outcome.truncated), metrics


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
