"""Sampled trajectories, read back token by token: text, logprob, version, and whether it was trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pydantic

from forebay.batching.loss_mask import Member, Reason, classify_tokens
from forebay.batching.settings import BatchingSettings
from forebay.chat import Chat
from forebay.errors import ForebayError, WireError
from forebay.staleness import StalenessSettings
from forebay.trajectory import PolicyVersion, StepRecord, Trajectory
from forebay.trajectory import Sequence as TokenSequence
from forebay.wire import decode

MAX_SAMPLES: Final = 8
MAX_TOKENS: Final = 16_000
MAX_SAMPLE_TOKENS: Final = 4_000
_MAX_FRAME_BYTES: Final = 16 << 20
_MAX_PENDING_TOKENS: Final = 16
_FILE_NAME = re.compile(r"(\d{1,18})-.+\.frame")
_BROKEN: Final = "\ufffd"


class Token(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One token that the policy sampled.

    Args:
        text: What it adds to the text; empty if it is part of the character that the next one ends.
        logprob: Under the policy that sampled it, nats.
        version: The policy version that sampled it.
        reason: Why it is not trained; `fresh` if it is; empty if that is not known.
    """

    text: str
    logprob: float
    version: int
    reason: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a sequence: what the policy said in one step, or what it was told before.

    Args:
        speaker: `policy` or `context`.
        text: What it was told.
        tokens: What it sampled.
        step: The step of the episode, for what was sampled.
        record: Its timings and reward.
    """

    speaker: Literal["policy", "context"]
    text: str = ""
    tokens: tuple[Token, ...] = ()
    step: int | None = None
    record: StepRecord | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory that was trained, ready to be shown.

    Args:
        version: The version that its batch made.
        trajectory: Its record.
        branches: Its sequences as messages.
        num_cut_tokens: Tokens left out because there are too many.
    """

    version: int
    trajectory: Trajectory
    branches: tuple[tuple[Message, ...], ...]
    num_cut_tokens: int = 0


class SampleReading(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a run, and what is to be said about those that are not shown."""

    samples: tuple[Sample, ...] = ()
    num_stored: int = 0
    problems: tuple[str, ...] = ()


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide which tokens are trained."""

    staleness: StalenessSettings
    batching: BatchingSettings


def token_rules(config: dict[str, Any]) -> TokenRules | None:
    """Return the rules of a stored configuration; None if it is not of this version of the program."""
    try:
        # A length that would have ended the run must not end its report.
        batching = {**config.get("batching", {}), "oversize": "truncate"}
        return TokenRules(
            staleness=StalenessSettings.model_validate(config.get("staleness", {})),
            batching=BatchingSettings.model_validate(batching),
        )
    except pydantic.ValidationError:
        return None


def read_samples(directory: Path, model: Path, rules: TokenRules | None) -> SampleReading:
    """Read some samples of a run, spread evenly over it.

    Args:
        directory: `RUN/samples`; may be missing.
        model: The directory of the run's tokenizer.
        rules: Which tokens are trained; None if that is not known.
    """
    names = sorted(p.name for p in directory.glob("*.frame") if _FILE_NAME.fullmatch(p.name))
    if not names:
        return SampleReading()
    problems: list[str] = []
    try:
        chat: Chat | None = Chat.load(model)
    except (ForebayError, OSError, UnicodeDecodeError) as error:
        chat = None
        problems.append(f"the tokenizer cannot be read, so token ids are shown: {error}")
    samples: list[Sample] = []
    left = MAX_TOKENS
    for name in _spread(names, MAX_SAMPLES):
        try:
            trajectory = _decode_file(directory / name)
        except (WireError, OSError) as error:
            problems.append(f"samples/{name}: {error}")
            continue
        sample = make_sample(_version_of(name), trajectory, chat, rules, min(left, MAX_SAMPLE_TOKENS))
        left -= sum(len(message.tokens) for branch in sample.branches for message in branch)
        samples.append(sample)
    return SampleReading(samples=tuple(samples), num_stored=len(names), problems=tuple(problems))


def pieces(chat: Chat, tokens: Sequence[int]) -> list[str]:
    """Return the text that each token adds; together they are the text of all.

    A token that ends within a character adds nothing: the one that completes it adds the whole.

    Args:
        chat: Decodes.
        tokens: Ids, in order.
    """
    texts: list[str] = []
    begin = read = 0
    for index in range(len(tokens)):
        before = _decode(chat, tokens[begin:read])
        text = _decode(chat, tokens[begin : index + 1])
        pending = index + 1 - read
        # A cut character decodes to a replacement sign, until its last byte has come or never will.
        if text.endswith(_BROKEN) and pending < _MAX_PENDING_TOKENS and index + 1 < len(tokens):
            texts.append("")
            continue
        texts.append(text[len(before) :] if text.startswith(before) else text)
        begin, read = read, index + 1
    return texts


def _decode(chat: Chat, tokens: Sequence[int]) -> str:
    return chat.decode(np.array(tokens, np.int32)) if len(tokens) else ""


def _spread(names: Sequence[str], most: int) -> list[str]:
    """Return at most `most` names, the first and the last among them."""
    if len(names) <= most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]


def _version_of(name: str) -> int:
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _decode_file(path: Path) -> Trajectory:
    with path.open("rb") as file:
        frame = file.read(_MAX_FRAME_BYTES + 1)
    return decode(frame, max_bytes=_MAX_FRAME_BYTES)


def make_sample(
    version: int, trajectory: Trajectory, chat: Chat | None, rules: TokenRules | None, room: int
) -> Sample:
    """Return a trajectory token by token.

    Args:
        version: The version that its batch made, or would make.
        trajectory: Its record.
        chat: Decodes; None shows ids.
        rules: Which tokens are trained; None if that is not known.
        room: The most tokens.
    """
    reasons = iter(_reasons(trajectory, version, rules))
    branches, num_cut = [], 0
    for sequence in trajectory.sequences:
        kept = max(0, min(room, len(sequence.tokens)))
        of_sequence = [next(reasons) for _ in range(sequence.num_action_tokens)]
        branches.append(tuple(_messages(sequence, trajectory, of_sequence, chat, kept)))
        room -= kept
        num_cut += len(sequence.tokens) - kept
    return Sample(version=version, trajectory=trajectory, branches=tuple(branches), num_cut_tokens=num_cut)


def _reasons(trajectory: Trajectory, version: int, rules: TokenRules | None) -> list[str]:
    """Return for each sampled token why it is not trained, in the learner's own words."""
    unknown = [""] * trajectory.num_action_tokens
    if rules is None:
        return unknown
    newest = max(
        (span.version for sequence in trajectory.sequences for span in sequence.version_spans),
        default=PolicyVersion(trajectory.incarnation, 0),
    )
    # The batch that made `version` differentiated the one before; what it trained cannot be newer.
    now = PolicyVersion(newest.incarnation, max(version - 1, newest.version))
    member = Member(trajectory, 0.0, trajectory.reward is not None)
    try:
        tokens = classify_tokens([member], now, (), rules.staleness, rules.batching)
    except ForebayError:
        return unknown
    return [Reason(int(reason)).name.lower() for reason in tokens.reasons]


def _messages(
    sequence: TokenSequence, trajectory: Trajectory, reasons: list[str], chat: Chat | None, kept: int
) -> Iterator[Message]:
    ids = sequence.tokens[:kept].tolist()
    texts = [f"[{token}] " for token in ids] if chat is None else pieces(chat, ids)
    versions = [span.version.version for span in sequence.version_spans for _ in range(span.num_tokens)]
    logprobs = sequence.behavior_logprobs.tolist()
    position = num_actions = 0
    for span in sequence.action_spans:
        if position < min(span.start, kept):
            yield Message(speaker="context", text="".join(texts[position : span.start]))
        count = max(0, min(span.stop, kept) - span.start)
        if count:
            which = slice(num_actions, num_actions + count)
            columns = zip(
                texts[span.start : span.start + count],
                logprobs[which],
                versions[which],
                reasons[which],
                strict=True,
            )
            yield Message(
                speaker="policy",
                tokens=tuple(Token(text=t, logprob=p, version=v, reason=r) for t, p, v, r in columns),
                step=span.step,
                record=trajectory.steps[span.step],
            )
        num_actions += span.stop - span.start
        position = span.stop
    if position < kept:
        yield Message(speaker="context", text="".join(texts[position:]))
