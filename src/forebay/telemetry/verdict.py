"""The verdict: one sentence that names what holds a run back, with numbers, and what mends it, with numbers.

Sizes follow from `forebay.telemetry.sizing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from forebay.telemetry.dominance import STARVED, life_sentence
from forebay.telemetry.sizing import episodes_needed, group_size_needed, slowest_of, staleness_needed
from forebay.telemetry.window import WindowFigures

Cause = Literal[
    "no_steps",
    "nonfinite",
    "no_spread",
    "masked",
    "failures",
    "staleness_limit",
    "generator",
    "environment",
    "compiling",
    "checkpointing",
    "publishing",
    "packing",
    "other",
    "fill",
    "slow_step",
    "fine",
]
Standing = Literal["good", "attention", "bad"]

# Shares from which something is worth a sentence.
_OVERHEAD: Final = 0.05
_FAILING: Final = 0.25
_NO_SPREAD: Final = 0.8
_MASKED: Final = 0.3
_NONFINITE: Final = 0.5
# Goodput below this share of busy is named; the share that a rarer checkpoint should cost.
_USEFUL: Final = 0.8
_CHECKPOINT_SHARE: Final = 0.02


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What holds a run back.

    Args:
        cause: Its kind.
        standing: Whether somebody should do something.
        sentence: What is wrong and what mends it, without a full stop.
        settings: Proposed settings by name.
        life: Where a trained token spends most of its life, and what would shorten it; empty if unknown.
    """

    cause: Cause
    standing: Standing
    sentence: str
    settings: Mapping[str, float] = {}
    life: str = ""


def judge(window: WindowFigures) -> Verdict:
    """Return the verdict on a window: the first that applies of not learning, starved, slowed down, fine."""
    return msgspec.structs.replace(_judge(window), life=life_sentence(window.lives, window))


def _judge(window: WindowFigures) -> Verdict:
    if window.num_batches == 0:
        return _no_steps(window)
    for look in (_not_learning, _starved, _overhead, _low_goodput):
        if (verdict := look(window)) is not None:
            return verdict
    sentence = (
        f"learner busy {_percent(window.shares.busy)} of {window.label}"
        f"{_goodput(window)}: no change is needed"
    )
    return Verdict(cause="fine", standing="good", sentence=sentence)


def _no_steps(window: WindowFigures) -> Verdict:
    failing = _failing(window)
    if failing is not None:
        return failing
    arrived = f"{window.trajectories} episodes have ended"
    if window.live_episodes is not None:
        arrived += f" and {window.live_episodes:.0f} run"
    needed = window.episodes_per_batch
    sentence = f"no batch has been trained: {arrived}, and a batch takes {needed}; see logs/"
    return Verdict(cause="no_steps", standing="bad", sentence=sentence)


def _not_learning(window: WindowFigures) -> Verdict | None:
    if window.updates and window.nonfinite_updates >= _NONFINITE * window.updates:
        return _bad(
            "nonfinite",
            f"{window.nonfinite_updates} of {window.updates} updates of {window.label} changed nothing: loss "
            f"or gradient was not finite; lower optimizer.learning_rate",
        )
    if (failing := _failing(window)) is not None:
        return failing
    sampled = window.fresh_tokens + sum(window.masked.values())
    if sampled and sum(window.masked.values()) >= _MASKED * sampled:
        return _masked(window, sampled)
    if window.groups and window.zero_spread_groups >= _NO_SPREAD * window.groups:
        return _no_spread(window)
    return None


def _failing(window: WindowFigures) -> Verdict | None:
    num_failed = sum(window.failures.values())
    if not num_failed or num_failed < _FAILING * max(window.trajectories, num_failed):
        return None
    counts = ", ".join(f"{count} {cause}" for cause, count in _by_count(window.failures)[:3])
    total = max(window.trajectories, num_failed)
    head = f"{_percent(num_failed / total)} of the episodes of {window.label} failed ({counts})"
    advice = "see logs/ for the first error"
    settings: dict[str, float] = {}
    if _by_count(window.failures)[0][0] == "timeout":
        advice, settings = _against_timeouts(window, advice)
    return _bad("failures", f"{head}: {advice}", settings)


def _against_timeouts(window: WindowFigures, otherwise: str) -> tuple[str, dict[str, float]]:
    """Return advice and settings for episodes that take too long: a shorter queue, or a later deadline."""
    env, waiting_s = window.slowest, window.life_s.get("generator_queue", 0.0)
    if window.live_episodes and window.episode_s and waiting_s > window.life_s.get("environment", 0.0):
        # Little's law: without the queue, as many episodes a second need fewer in flight.
        needed = math.ceil(window.live_episodes * (1 - waiting_s / window.episode_s))
        each = math.ceil(needed / window.limits.actor_processes)
        advice = (
            f"they wait {_seconds(waiting_s)} for the generator; lower episodes in flight to {needed} "
            f"(now {window.live_episodes:.0f}), or give it more cores"
        )
        return advice, {window.limits.episodes_setting: float(each)}
    if env and env.step_p95_s and env.max_turns and env.episode_timeout_s:
        needed_s = math.ceil(env.max_turns * env.step_p95_s)
        if needed_s > env.episode_timeout_s:
            advice = (
                f"{env.max_turns} turns of environment `{env.name}` at p95 {_seconds(env.step_p95_s)} need "
                f"episode_timeout_s {needed_s} (now {env.episode_timeout_s:g})"
            )
            return advice, {f"environment.{env.name}.episode_timeout_s": float(needed_s)}
    return otherwise, {}


def _masked(window: WindowFigures, sampled: int) -> Verdict:
    reason, count = _by_count(window.masked)[0]
    head = (
        f"{_percent(sum(window.masked.values()) / sampled)} of the sampled tokens of {window.label} are not"
    )
    head = f"{head} trained, {_percent(count / sampled)} because {_REASONS.get(reason, reason)}"
    settings: dict[str, float] = {}
    advice = "see the trajectories"
    if reason == "stale" and (needed := _staleness_for(window)) > window.limits.max_staleness:
        settings = {"staleness.max_staleness": float(needed)}
        advice = f"raise staleness.max_staleness to {needed} (now {window.limits.max_staleness})"
    elif reason == "too_long":
        advice = "raise batching.max_length"
    elif reason == "unscored":
        advice = "give those episodes a reward, or a longer episode_timeout_s"
    return _bad("masked", f"{head}: {advice}", settings)


_REASONS: Final = {
    "first": "nothing predicts the first token of a sequence",
    "untrainable": "they were sampled greedily or from a truncated distribution",
    "unscored": "their episode has no reward",
    "truncated": "a limit ended their episode",
    "stale": "they are older than max_staleness",
    "too_long": "their sequence is longer than batching.max_length",
}


def _no_spread(window: WindowFigures) -> Verdict:
    share, reward, size = window.zero_spread_groups / window.groups, window.reward, window.limits.group_size
    head = f"{_percent(share)} of the groups of {window.label} have equal rewards, so they teach nothing"
    if window.limits.siblings != "all":
        return _bad("no_spread", f'{head}: compare more episodes, with objective.siblings = "all"')
    needed = group_size_needed(reward) if reward is not None and 0 < reward < 1 else None
    if needed is not None and needed > size:
        sentence = (
            f"{head}: at a mean reward of {reward:.2f} raise batching.group_size to {needed} (now {size})"
        )
        return _bad("no_spread", sentence, {"batching.group_size": float(needed)})
    shown = "unknown" if reward is None else f"{reward:.2f}"
    return _bad("no_spread", f"{head}: the mean reward is {shown}; pose tasks that are solved now and then")


def _starved(window: WindowFigures) -> Verdict | None:
    share = window.shares.share("starved")
    if share < STARVED:
        return None
    head = f"learner starved {_percent(share)} of {window.label}"
    waited_for = max(window.waits, key=lambda cause: window.waits[cause], default=None)
    if waited_for == "packing":
        return _bad("packing", f"{head}: batches are packed too slowly; raise batching.prefetch")
    if waited_for == "urgent" or (waited_for is None and _holds_a_batch(window)):
        return _staleness_bound(window, head)
    waiting = window.life_s.get("generator_queue", 0.0)
    answering = window.life_s.get("generating", 0.0)
    answered = window.life_s.get("environment", math.inf) + window.life_s.get("reset", 0.0)
    if waiting + answering > answered:
        return _generator_bound(window, head, waiting, answering)
    return _environment_bound(window, head)


def _holds_a_batch(window: WindowFigures) -> bool:
    """Return whether a whole batch was settled, on average, while the learner starved."""
    settled = (window.buffer_groups or 0.0) >= window.limits.groups
    return settled and window.limits.on_stale == "wait" and window.limits.max_staleness > 0


def _staleness_bound(window: WindowFigures, head: str) -> Verdict:
    limits = window.limits
    head = (
        f"{head}: {window.buffer_groups or 0:.0f} groups are settled, but an older one still runs that "
        f"max_staleness {limits.max_staleness} lets nothing overtake"
    )
    needed = max(_staleness_for(window), _scaled_staleness(window))
    settings = {"staleness.max_staleness": float(needed)}
    return _bad("staleness_limit", f"{head}; raise staleness.max_staleness to {needed}", settings)


def _generator_bound(window: WindowFigures, head: str, waiting_s: float, answering_s: float) -> Verdict:
    factor = 1 / max(1 - window.shares.share("starved"), 0.01)
    slots = math.ceil(window.limits.slots * (waiting_s + answering_s) / max(answering_s, 1e-9))
    head = (
        f"{head}: the generator, where a token waits {_seconds(waiting_s)} and is decoded in "
        f"{_seconds(answering_s)}; it has to be {factor:.1f} times as fast"
    )
    if waiting_s > answering_s:
        settings = {"generator.slots": float(slots)}
        sentence = (
            f"{head}: raise generator.slots to {slots} (now {window.limits.slots}) or give it more cores"
        )
        return _bad("generator", sentence, settings)
    return _bad("generator", f"{head}: give it more cores")


def _environment_bound(window: WindowFigures, head: str) -> Verdict:
    env = window.slowest
    name = "the environments" if env is None else f"environment `{env.name}`"
    tails = [] if env is None or env.step_p95_s is None else [f"p95 {_seconds(env.step_p95_s)} a step"]
    tails += [] if env is None or env.episode_p95_s is None else [f"{_seconds(env.episode_p95_s)} an episode"]
    raises = _raises(window)
    advice = " and ".join(f"{name} to {value} (now {now})" for name, value, now, _ in raises)
    sentence = f"{head}: {' '.join([name, ', '.join(tails)]).rstrip()}; raise {advice}"
    settings = {setting: float(value) for _, value, _, setting in raises}
    if (in_flight := window.limits.episodes_setting) in settings:
        settings[in_flight] = float(math.ceil(settings[in_flight] / window.limits.actor_processes))
    return _bad("environment", sentence, settings)


class _Raise(NamedTuple):
    name: str
    value: int
    now: int
    setting: str


def _raises(window: WindowFigures) -> list[_Raise]:
    """Return every limit that the arithmetic finds too low; if it finds none, more batches in flight."""
    limits = window.limits
    in_flight = limits.actor_processes * limits.episodes_per_process
    needed = episodes_needed(window.episodes_per_batch, window.cycle_s, window.episode_s or 0.0)
    # One batch more: the one that is trained meanwhile.
    credit = math.ceil(needed / window.episodes_per_batch) + 1
    staleness = _staleness_for(window)
    if needed <= in_flight and staleness <= limits.max_staleness and credit <= limits.credit:
        # What the arithmetic does not see, the measurement does: more of what it had, by what it lacked.
        factor = 1 / (1 - min(window.shares.share("starved"), 0.99))
        if max(window.waits, key=lambda cause: window.waits[cause], default=None) == "actors":
            needed = math.ceil(in_flight * factor)
        else:
            credit = math.ceil(limits.credit * factor)
    staleness = max(staleness, credit * limits.updates_per_batch - 1)
    raises = [_Raise("episodes in flight", needed, in_flight, limits.episodes_setting)]
    raises += [_Raise("max_staleness", staleness, limits.max_staleness, "staleness.max_staleness")]
    raises += [_Raise("credit", credit, limits.credit, "staleness.credit")] if limits.credit_is_set else []
    return [item for item in raises if item.value > item.now]


def _staleness_for(window: WindowFigures) -> int:
    """Return S_min; under `wait` no group is overtaken for long, so the batch's slowest episode counts."""
    env, limits = window.slowest, window.limits
    count = window.episodes_per_batch if limits.on_stale == "wait" else limits.group_size
    if env is not None and env.episode_p50_s and env.episode_p95_s:
        group_s = slowest_of(count, env.episode_p50_s, env.episode_p95_s)
        group_s = min(group_s, env.episode_timeout_s or math.inf)
    else:
        group_s = window.episode_s or 0.0
    return staleness_needed(group_s, window.cycle_s, limits.updates_per_batch)


def _scaled_staleness(window: WindowFigures) -> int:
    """Return the staleness that allows 1 / (1 - starved) times as many batches in flight as now."""
    share = min(window.shares.share("starved"), 0.99)
    batches = max(window.limits.credit, (window.limits.max_staleness + 1) / window.limits.updates_per_batch)
    return math.ceil(window.limits.updates_per_batch * batches / (1 - share)) - 1


def _overhead(window: WindowFigures) -> Verdict | None:
    states: tuple[Cause, ...] = ("compiling", "checkpointing", "publishing", "packing", "other")
    shares = {cause: window.shares.share(cause) for cause in states}  # type: ignore[arg-type]
    cause = max(states, key=lambda name: shares[name])
    if shares[cause] < _OVERHEAD:
        return None
    head = f"learner spent {_percent(shares[cause])} of {window.label} {_DOING[cause]}"
    every = window.limits.checkpoint_every
    if cause == "checkpointing":
        needed = math.ceil(every * shares[cause] / _CHECKPOINT_SHARE)
        sentence = f"{head}; raise learner.checkpoint_every to {needed} (now {every})"
        return _bad(cause, sentence, {"learner.checkpoint_every": float(needed)})
    advice = {
        "compiling": f"{window.compiles} programs were built after warm-up; there should be 0",
        "publishing": "raise learner.publish_every, or weights go to a slow disk",
        "packing": "its cores are taken by something else; set launch.learner_cpus",
        "other": "its cores are taken by something else; set launch.learner_cpus",
    }[cause]
    return _bad(cause, f"{head}: {advice}")


_DOING: Final[dict[str, str]] = {
    "compiling": "compiling",
    "checkpointing": "saving checkpoints",
    "publishing": "publishing weights",
    "packing": "copying batches to its devices",
    "other": "outside every span",
}


def _low_goodput(window: WindowFigures) -> Verdict | None:
    busy, goodput, fill = window.shares.busy, window.goodput, window.fill
    if goodput is None or goodput >= _USEFUL * busy:
        return None
    head = f"learner busy {_percent(busy)} of {window.label}, but goodput is {_percent(goodput)}"
    if fill is not None and 1 - fill >= (busy - goodput) / busy / 2:
        advice = f"{_percent(1 - fill)} of the slots are padding; raise batching.groups or max_programs"
        return _attention("fill", f"{head}: {advice}")
    slower = busy / goodput * (1.0 if fill is None else fill)
    advice = (
        f"a step takes {slower:.2f} times as long as alone; give it cores of its own (launch.learner_cpus)"
    )
    return _attention("slow_step", f"{head}: {advice}")


def _goodput(window: WindowFigures) -> str:
    return "" if window.goodput is None else f", goodput {_percent(window.goodput)}"


def _bad(cause: Cause, sentence: str, settings: Mapping[str, float] | None = None) -> Verdict:
    return Verdict(cause=cause, standing="bad", sentence=sentence, settings=settings or {})


def _attention(cause: Cause, sentence: str) -> Verdict:
    return Verdict(cause=cause, standing="attention", sentence=sentence)


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(value_s: float) -> str:
    return f"{value_s:.1f} s" if value_s >= 0.95 else f"{value_s:.2f} s"
