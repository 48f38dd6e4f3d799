"""Sampled trajectories as conversations: what the policy was told and said, token by token."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from markupsafe import Markup, escape

from forebay.report.panels import Segment
from forebay.report.samples import Message, Sample, Token
from forebay.report.text import number, seconds, visible
from forebay.trajectory import StepRecord

# Probabilities at which the tint grows stronger.
PROBABILITIES: Final = (0.9, 0.5, 0.2, 0.05, 0.01)
NUM_VERSION_TINTS: Final = 6
_MARKER = re.compile(r"(<[^<>\s]{1,40}>)")
# With the colors that they have in the life of a token.
_PARTS: Final = (
    ("waiting for the generator", "generator_wait_s", 1),
    ("decoding", "generate_s", 2),
    ("environment", "environment_s", 3),
)


class Bubble(msgspec.Struct, frozen=True, kw_only=True):
    """A message: who speaks, its text as HTML, and what is said below it."""

    speaker: str
    title: str
    html: Markup
    footer: str


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence of an episode; its title is empty if it is the only one."""

    title: str
    bubbles: tuple[Bubble, ...]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory as the page shows it.

    Args:
        title: The step that trained it.
        facts: Name and value of what is known about it.
        timeline: Its time by what it waited for.
        branches: Its sequences.
        versions: What the tint of versions means: label and index.
        note: What is left out; may be empty.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    timeline: tuple[Segment, ...]
    branches: tuple[Branch, ...]
    versions: tuple[tuple[str, int], ...]
    note: str


def conversation_of(sample: Sample) -> Conversation:
    """Return a sampled trajectory as the page shows it."""
    trajectory = sample.trajectory
    versions = sorted({t.version for b in sample.branches for m in b for t in m.tokens}, reverse=True)
    tints = {version: min(index, NUM_VERSION_TINTS - 1) for index, version in enumerate(versions)}
    several = len(sample.branches) > 1
    note = f"{sample.num_cut_tokens:,} more tokens are not shown." if sample.num_cut_tokens else ""
    return Conversation(
        title=f"Trained in step {sample.version}",
        facts=(
            ("environment", trajectory.environment),
            ("task", trajectory.task_id),
            ("reward", "not scored" if trajectory.reward is None else number(trajectory.reward)),
            ("ended", trajectory.finish),
            ("turns", str(len(trajectory.steps))),
            ("tokens sampled", f"{trajectory.num_action_tokens:,} of {trajectory.num_tokens:,}"),
            ("time", seconds(max(0.0, trajectory.finished_s - trajectory.started_s))),
            ("trajectory", trajectory.trajectory_id),
        ),
        timeline=_timeline(trajectory.steps),
        branches=tuple(
            Branch(
                title=f"Branch {index + 1} of {len(sample.branches)}" if several else "",
                bubbles=tuple(_bubble(message, tints) for message in messages),
            )
            for index, messages in enumerate(sample.branches)
        ),
        versions=tuple((f"version {version}", tints[version]) for version in versions[:NUM_VERSION_TINTS]),
        note=note,
    )


def tint_of(logprob: float) -> int:
    """Return how strong the tint of a token is: 0 for one that was nearly certain.

    Example:
        >>> tint_of(0.0), tint_of(-0.7), tint_of(-9.0)
        (0, 2, 5)
    """
    probability = math.exp(min(logprob, 0.0))
    return sum(probability < limit for limit in PROBABILITIES)


def _bubble(message: Message, tints: dict[int, int]) -> Bubble:
    if message.speaker == "context":
        return Bubble(speaker="context", title="told", html=_context_html(message.text), footer="")
    turn = "" if message.step is None else f" in turn {message.step + 1}"
    return Bubble(
        speaker="policy",
        title=f"policy{turn}",
        html=_tokens_html(message.tokens, tints),
        footer="" if message.record is None else _footer(message.record),
    )


def _footer(record: StepRecord) -> str:
    said = [
        f"waited {seconds(record.generator_wait_s)}",
        f"decoded in {seconds(record.generate_s)}",
        f"environment answered in {seconds(record.environment_s)}",
    ]
    said += [] if record.reward is None else [f"reward {number(record.reward)}"]
    return " · ".join([*said, f"stopped by {visible(record.finish)}"])


def _context_html(text: str) -> Markup:
    """Return text with the template's markers dimmed."""
    parts = _MARKER.split(visible(text))
    return Markup("").join(
        Markup('<span class="marker">{}</span>').format(part) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def _tokens_html(tokens: Sequence[Token], tints: dict[int, int]) -> Markup:
    return Markup("").join(_token_html(token, tints) for token in tokens)


def _token_html(token: Token, tints: dict[int, int]) -> Markup:
    shown = visible(token.text).replace("\n", "↵\n") or "·"
    untrained = token.reason not in ("fresh", "")
    classes = f"l{tint_of(token.logprob)} v{tints[token.version]}" + (" u" if untrained else "")
    reason = Markup(' data-r="{}"').format(token.reason) if untrained else ""
    return Markup('<i class="{}" data-p="{:.3f}" data-v="{}"{}>{}</i>').format(
        classes, token.logprob, token.version, reason, shown
    )


def _timeline(steps: Sequence[StepRecord]) -> tuple[Segment, ...]:
    spent = [
        (f"turn {index + 1}: {label}", getattr(step, field), color)
        for index, step in enumerate(steps)
        for label, field, color in _PARTS
    ]
    total_s = sum(value for _, value, _ in spent)
    if total_s <= 0:
        return ()
    return tuple(
        Segment(label=label, value=seconds(value), share=value / total_s, color=color)
        for label, value, color in spent
        if value / total_s > 1e-4
    )
