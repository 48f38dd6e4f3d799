"""The contract of reset and step, judged from what they returned; pure functions of values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

from forebay.chat import Message, Role
from forebay.envs.conformance.findings import Finding, Level
from forebay.envs.protocol import Observation, Outcome

_ROLES = get_args(Role)
_TYPES_REMEDY = "Import it from forebay.envs.protocol: Observation((Message('user', text),))."


def judge_reset(value: object) -> Iterator[Finding]:
    """Yield what is wrong with the result of `reset`."""
    yield from judge_observation(value, "reset")
    if isinstance(value, Observation) and not value.messages:
        yield _finding("reset", "warning", "reset says nothing", "Return a message that poses the task.")


def judge_observation(value: object, verb: str) -> Iterator[Finding]:
    """Yield what is wrong with an observation."""
    if not isinstance(value, Observation):
        yield _finding(
            verb, "fault", f"{verb} gave {_shown(value)} where an Observation belongs", _TYPES_REMEDY
        )
        return
    messages: object = value.messages
    if not isinstance(messages, tuple | list):
        yield _finding(
            verb, "fault", f"the messages of {verb} are {_shown(messages)}, not a tuple", _TYPES_REMEDY
        )
        return
    for message in messages:
        yield from _judge_message(message, verb)


def judge_step(value: object) -> Iterator[Finding]:
    """Yield what is wrong with the result of `step`."""
    if not isinstance(value, Outcome):
        remedy = "Return Outcome(observation=..., reward=..., terminated=...), from forebay.envs.protocol."
        yield _finding("step", "fault", f"step returned {_shown(value)} where an Outcome belongs", remedy)
        return
    yield from judge_observation(value.observation, "step")
    yield from judge_reward(value.reward)
    yield from _judge_end(value)
    yield from _judge_metrics(value.metrics)


def judge_reward(value: object) -> Iterator[Finding]:
    """Yield what is wrong with the reward of a step."""
    if value is None or (isinstance(value, float | int) and not isinstance(value, bool)):
        number = 0.0 if value is None else float(value)
    elif not hasattr(value, "__float__"):
        remedy = "Return a float; None where there is no reward yet."
        yield _finding("reward", "fault", f"a reward is {_shown(value)}", remedy)
        return
    else:
        number = float(value)
        remedy = "It is taken as a number; float(...) says so."
        yield _finding("reward", "warning", f"a reward is {_shown(value)}", remedy)
    if not math.isfinite(number):
        remedy = "It counts as no reward, and an episode without any is not trained: return a finite number."
        yield _finding("reward", "fault", f"a reward is {number}", remedy)


def _judge_message(value: object, verb: str) -> Iterator[Finding]:
    if not isinstance(value, Message):
        yield _finding(verb, "fault", f"a message of {verb} is {_shown(value)}", _TYPES_REMEDY)
        return
    if value.role not in _ROLES:
        remedy = f"Use one of {', '.join(_ROLES)}."
        yield _finding(verb, "fault", f"a message of {verb} has the role {value.role!r:.80}", remedy)
    content: object = value.content
    if not isinstance(content, str):
        yield _finding(verb, "fault", f"the content of a message is {_shown(content)}", "Make it text.")


def _judge_end(outcome: Outcome) -> Iterator[Finding]:
    for name in ("terminated", "truncated"):
        value: Any = getattr(outcome, name)
        if not isinstance(value, bool):
            yield _finding(
                "end", "warning", f"{name} is {_shown(value)}", "It is taken as a truth value: use bool."
            )
    if outcome.terminated and outcome.truncated:
        remedy = "terminated is the episode's own end, truncated a cut; terminated wins."
        yield _finding("end", "warning", "a step is both terminated and truncated", remedy)
    if not (outcome.terminated or outcome.truncated or outcome.observation.messages):
        remedy = "Say something back, or end the episode: the model would answer to its own words."
        yield _finding("step", "warning", "a step that does not end the episode says nothing", remedy)


def _judge_metrics(metrics: object) -> Iterator[Finding]:
    if not isinstance(metrics, dict):
        yield _finding(
            "metrics", "fault", f"metrics are {_shown(metrics)}", "Make them a dict of numbers by name."
        )
        return
    for name, value in metrics.items():
        if not isinstance(name, str) or not hasattr(value, "__float__"):
            what = f"a metric is {name!r:.80}: {_shown(value)}"
            yield _finding("metrics", "fault", what, "Metrics are numbers by name.")
        elif not math.isfinite(float(value)):
            what = f"metric {name!r:.80} is {float(value)}"
            yield _finding("metrics", "warning", what, "It is left out: return a finite number.")


def _shown(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.120}"


def _finding(check: str, level: Level, what: str, remedy: str) -> Finding:
    return Finding(check, level, what, remedy)
