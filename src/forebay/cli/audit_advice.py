"""What an audit means, in sentences for people who have never heard of queueing."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import Final

from forebay.cli.transcript import visible
from forebay.planner.audit import Audit, LevelSummary
from forebay.report.text import number, percent, seconds

_BUSY: Final = 0.9
_BLOCKED: Final = 0.2
_HEAVY: Final = 3.0
_OWN: Final = 0.01
_ROUGH: Final = 0.75
_FEW_EPISODES: Final = 30
_RATE_LIMIT: Final = re.compile(r"rate.?limit|too many|\b429\b|quota|throttl", re.IGNORECASE)


def advise(audit: Audit) -> list[str]:
    """Return what limits an environment, what to change, and how sure that is."""
    if not any(level.step_s for level in audit.levels):
        return [*_failures(audit), "No step was answered, so there is nothing to say about its speed."]
    if audit.knee.kind == "instant":
        return [*_instant(audit), *_failures(audit), *_doubts(audit)]
    return [
        *_alone(audit),
        *_knee(audit),
        *_causes(audit),
        *_failures(audit),
        *_tail(audit),
        *_doubts(audit),
        _own(audit),
    ]


def _instant(audit: Audit) -> Iterator[str]:
    step = audit.levels[0].step_s
    assert step is not None
    yield (
        f"It answers in {seconds(step.p50)}, faster than calls follow one another "
        f"({seconds(audit.own_call_s)} between them on an environment that does nothing): the rates and "
        f"times above are mostly those of the measurement. Nothing waits for this environment, and it has no "
        f"time that could be hidden."
    )


def _alone(audit: Audit) -> Iterator[str]:
    first = next(level for level in audit.levels if level.step_s)
    assert first.step_s is not None
    at_once = "Alone" if first.concurrency == 1 else f"With {first.concurrency} at a time"
    text = f"{at_once}, a step takes {seconds(first.step_s.p50)} as a rule"
    text += f" and 1 in 20 more than {seconds(first.step_s.p95)}"
    if audit.turns is not None and first.episode_s is not None:
        text += f"; an episode has {number(audit.turns.mean)} turns and takes {seconds(first.episode_s.mean)}"
    yield f"{text}, the model's time not counted."


def _knee(audit: Audit) -> Iterator[str]:
    knee, top = audit.knee, audit.levels[-1]
    if knee.kind == "unknown":
        yield "Only one level was measured: whether more at a time gain anything is not known."
    elif knee.kind == "scales":
        yield _growth(audit)
    elif knee.kind == "bends":
        yield (
            f"{top.concurrency} at a time still do the most work, but each does only "
            f"{percent(knee.efficiency.value)} (95 % interval {percent(knee.efficiency.low)} to "
            f"{percent(knee.efficiency.high)}) of what one does at {audit.levels[0].concurrency}: they "
            f"disturb one another. About {number(math.ceil(knee.saturation))} that do not would do as much."
        )
    else:
        yield from _saturation(audit)


def _growth(audit: Audit) -> str:
    found, top, first = audit.knee.efficiency, audit.levels[-1], audit.levels[0]
    text = (
        f"Up to {top.concurrency} at a time, more episodes do more work: each does {percent(found.value)} "
        f"(95 % interval {percent(found.low)} to {percent(found.high)}) of what one does at "
        f"{first.concurrency}"
    )
    if found.low < _ROUGH:
        return f"{text}. That is too rough to tell whether they disturb one another: a larger --seconds does."
    return f"{text}; no limit was reached. Measure higher levels with --concurrency if you want to run more."


def _saturation(audit: Audit) -> Iterator[str]:
    knee, top = audit.knee, audit.levels[-1]
    at = next(level for level in audit.levels if level.concurrency == knee.concurrency)
    assert at.step_s is not None
    before = after = seconds(at.step_s.p95)
    if top.step_s is not None:
        after = seconds(top.step_s.p95)
    change = f"stays at {before}" if before == after else f"goes from {before} to {after}"
    yield (
        f"More than {knee.concurrency} at a time gain nothing: from {knee.concurrency} to {top.concurrency}, "
        f"answers go from {number(at.answers_per_s.value)} to {number(top.answers_per_s.value)}/s while the "
        f"slowest twentieth of the steps {change}. Run at most {knee.concurrency} at a time on this "
        f"environment as it is (actors.processes x actors.episodes_per_process, its share of them); for "
        f"more, give it more machines or remove the limit named below."
    )
    above = next(level for level in audit.levels if level.concurrency > knee.concurrency)
    below = [level.concurrency for level in audit.levels if level.concurrency < knee.concurrency]
    if below and above.concurrency - below[-1] > 2:
        yield (
            f"The exact place lies between {below[-1]} and {above.concurrency}: --concurrency with values "
            f"between them finds it."
        )


def _causes(audit: Audit) -> Iterator[str]:
    if audit.knee.kind not in ("saturates", "bends"):
        return
    worst = audit.levels[-1]
    blocked = max(audit.levels, key=lambda level: level.blocked_share)
    if blocked.blocked_share > _BLOCKED:
        yield (
            f"Its code blocks the event loop for {percent(blocked.blocked_share)} of the time (longest at "
            f"{visible(blocked.blocked_at)}): while it does, every other episode of the process waits. Set "
            f"environment.{audit.name}.blocking=true, or await there."
        )
    elif (busy := max(audit.levels, key=lambda level: level.own_cpu)).own_cpu > _BUSY:
        yield (
            f"With {busy.concurrency} at a time, its Python code and the measurement keep one core busy "
            f"({percent(min(1.0, busy.own_cpu))}): one process cannot do more. Set "
            f"environment.{audit.name}.blocking=true for a process per episode, or raise actors.processes."
        )
    if (worst.cpu_busy or 0.0) > _BUSY >= (audit.levels[0].cpu_busy or 0.0):
        yield (
            f"The {os.cpu_count()} processors of this machine are {percent(worst.cpu_busy)} busy with "
            f"{worst.concurrency} at a time: that alone makes steps slower. Run fewer, or give actors "
            f"machines of their own."
        )
    limited = [error for error, detail in audit.details.items() if _RATE_LIMIT.search(f"{error} {detail}")]
    if limited:
        first = next(level for level in audit.levels if any(error in level.errors for error in limited))
        yield (
            f"From {first.concurrency} at a time on, the service behind it refuses calls for coming too fast "
            f"({visible(audit.details[limited[0]])[:120]}): run fewer at a time, or have the limit raised."
        )
    has_cause = blocked.blocked_share > _BLOCKED or limited or (worst.cpu_busy or 0.0) > _BUSY
    if not has_cause and _max_own_cpu(audit) <= _BUSY:
        yield (
            "Neither the processors nor the event loop of this machine are busy and no call was refused for "
            "its rate: what limits is behind the environment (a service, a lock, a pool of connections, the "
            "network)."
        )


def _max_own_cpu(audit: Audit) -> float:
    return max(level.own_cpu for level in audit.levels)


def _failures(audit: Audit) -> Iterator[str]:
    for error, detail in audit.details.items():
        counts = [(level.concurrency, level.errors[error]) for level in audit.levels if error in level.errors]
        where = ", ".join(f"{count} with {concurrency} at a time" for concurrency, count in counts)
        yield f"Failed, {visible(error)}: {where}. The last one: {visible(detail)[:200]}."


def _tail(audit: Audit) -> Iterator[str]:
    steps = [level.step_s for level in audit.levels if level.step_s]
    if max(step.max for step in steps) <= 1.001 * min(step.mean for step in steps):
        yield "Every step took the same time: groups will not wait for stragglers."
        return
    tail = audit.step_tail
    if tail is not None and tail.index < _HEAVY:
        meaning = "no mean" if tail.high <= 1.0 else "a mean that a few steps decide"
        yield (
            f"Some steps take very much longer than others (tail index {number(tail.index)}, "
            f"{number(tail.low)} to {number(tail.high)}, from the {tail.num_tail} longest of "
            f"{tail.num_samples}; 2 or less is {meaning}). Groups wait for their slowest member: set "
            f"environment.{audit.name}.step_timeout_s and episode_timeout_s to what you are willing to wait."
        )


def _doubts(audit: Audit) -> Iterator[str]:
    first = audit.levels[0].cpu_busy
    if first is not None and first > _BUSY:
        yield (
            f"The machine was {percent(first)} busy already with {audit.levels[0].concurrency} at a time. If "
            f"that was not the environment, measure again on a quiet machine: times are too long."
        )
    cut = sum(level.num_cut for level in audit.levels)
    ended = sum(level.num_episodes for level in audit.levels)
    if cut:
        yield (
            f"{cut} episodes were given up at the end of a level, {ended} ended: times of whole episodes "
            f"leave the longest ones out. A larger --seconds waits for more."
        )
    few = [level for level in audit.levels if 0 < level.num_episodes < _FEW_EPISODES]
    if few:
        which = ", ".join(f"{level.num_episodes} with {level.concurrency} at a time" for level in few)
        yield f"Few episodes ended ({which}): p99 and the knee are rough there. A larger --seconds helps."
    if audit.knee.kind == "saturates" and audit.knee.certainty < 0.9:
        yield (
            f"When its time slices are drawn again, {percent(audit.knee.certainty)} of the draws find the "
            f"limit at {audit.knee.concurrency}: it is not certain."
        )


def _own(audit: Audit) -> str:
    share, call = percent(audit.own_share), seconds(audit.own_call_s)
    text = f"Measuring cost {share} of the episodes' time ({call} a call on an environment that does nothing)"
    between = max(audit.levels, key=lambda level: level.between_share)
    if between.between_share <= _OWN:
        return f"{text}."
    return (
        f"{text}. With {between.concurrency} at a time, calls waited {percent(between.between_share)} of the "
        f"time for the event loop, as they would in an actor process."
    )


def failures_text(level: LevelSummary) -> str:
    """Return the failures of a level as a cell of a table."""
    parts = ((level.num_errors, "error"), (level.num_timeouts, "timeout"), (level.num_cut, "cut"))
    return ", ".join(f"{count} {what}" for count, what in parts if count) or "-"
