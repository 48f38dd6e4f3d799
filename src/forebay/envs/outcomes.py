"""The one place that judges what an environment returned, wherever its code runs."""

from __future__ import annotations

import math

import msgspec

from forebay.chat import Message
from forebay.envs.protocol import Observation, Outcome


def checked_observation(value: object) -> Observation:
    """Return an observation that is one.

    Raises:
        TypeError: It is something else, or holds something else than messages.
    """
    if not (isinstance(value, Observation) and all(isinstance(m, Message) for m in value.messages)):
        raise TypeError(f"expected an Observation of Messages, got {value!r:.200}")
    return value


def checked_outcome(value: object) -> Outcome:
    """Return an outcome whose numbers are finite floats: a reward that is not finite is no reward.

    Raises:
        TypeError: It is something else, or its reward or a metric is no number.
    """
    if not isinstance(value, Outcome):
        raise TypeError(f"expected an Outcome, got {value!r:.200}")
    checked_observation(value.observation)
    reward = None if value.reward is None else as_number(value.reward, "a reward")
    metrics = {str(name): as_number(v, f"metric {name!r:.80}") for name, v in value.metrics.items()}
    return msgspec.structs.replace(
        value,
        reward=reward if reward is not None and math.isfinite(reward) else None,
        terminated=bool(value.terminated),
        truncated=bool(value.truncated),
        metrics={name: v for name, v in metrics.items() if math.isfinite(v)},
    )


def as_number(value: object, what: str) -> float:
    """Return a number of any kind, NumPy's too, as a float.

    Args:
        value: What should be one.
        what: Names it in the error.

    Raises:
        TypeError: It is none; text that looks like one is none either.

    Example:
        >>> as_number(True, "a reward")
        1.0
        >>> as_number("1.0", "a reward")
        Traceback (most recent call last):
        ...
        TypeError: a reward must be a number, got str '1.0'
    """
    convert = getattr(value, "__float__", None)
    if convert is None:
        raise TypeError(f"{what} must be a number, got {type(value).__name__} {value!r:.80}")
    return float(convert())
