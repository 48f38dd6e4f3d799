"""The records: what a task is, and what an episode leaves behind.

Legend: T tokens of a sequence, A action tokens of a sequence (those the policy sampled).
Every record is frozen and checks itself at construction, so that a contradiction is refused where it arises.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.errors import RecordError

Finish = Literal["terminated", "truncated", "context", "timeout", "aborted"]
LogprobKind = Literal["processed", "raw"]

# Exact in JSON readers that know only float64; far above anything that is counted here.
MAX_COUNT: Final = 2**53 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]

MAX_NAME_LENGTH: Final = 128
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_NAME_LENGTH - 1}}}")


def check_name(value: str, what: str) -> str:
    """Return `value` if it is safe as an identifier and as a file name.

    Args:
        value: Candidate name.
        what: What the name is for; appears in the error.

    Raises:
        RecordError: The name is empty, too long, or has characters outside letters, digits and `._:-`.
    """
    if not _NAME.fullmatch(value):
        raise RecordError(
            "bad_name",
            f"{what} must start with a letter or digit and hold only letters, digits and ._:-",
            got=repr(value[:MAX_NAME_LENGTH]),
            limit=f"{MAX_NAME_LENGTH} characters",
        )
    return value


class PolicyVersion(NamedTuple):
    """A point in the history of the weights, ordered by (incarnation, version).

    `version` counts optimizer steps; `incarnation` counts resumes of the learner.
    """

    incarnation: Count
    version: Count


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One problem for one environment.

    Args:
        task_id: Stable name of the problem; the same in every epoch.
        environment: Name of the environment that poses it.
        payload: What the environment needs to pose it; JSON types only.
        seed: Seed of the episode's own randomness; differs between groups that share a task.
    """

    task_id: str
    environment: str
    payload: dict[str, Any]
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.task_id, "task_id")
        check_name(self.environment, "environment")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The distribution that tokens were drawn from: the sampling contract.

    Args:
        temperature: Divisor of the logits; 0 means greedy, which is never trained.
        top_p: Nucleus mass; 1 means off.
        top_k: Number of candidates; 0 means off.
        logprob_kind: `processed` logprobs are those of the distribution after temperature and masks.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Count = 0
    logprob_kind: LogprobKind = "processed"

    def __post_init__(self) -> None:
        if not (0.0 <= self.temperature <= 100.0 and 0.0 < self.top_p <= 1.0 and self.top_k >= 0):
            raise RecordError("bad_sampling", "sampling contract out of range", got=repr(self))

    @property
    def trainable(self) -> bool:
        """Whether the recorded logprobs are those of the full distribution that was sampled."""
        untruncated = self.top_p == 1.0 and self.top_k == 0
        return untruncated and self.temperature > 0.0 and self.logprob_kind == "processed"


class VersionSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of action tokens sampled by one version of the weights.

    Args:
        num_tokens: Length of the run.
        version: The version whose logits were sampled.
        kv_version: The oldest version that wrote any of the KV cache that these tokens attended to.
    """

    num_tokens: Count
    version: PolicyVersion
    kv_version: PolicyVersion


class ActionSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens `[start, stop)` of a sequence, sampled by the policy in step `step` of the episode."""

    start: Count
    stop: Count
    step: Count


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One model call and the environment's answer to it.

    Args:
        reward: Reward of this step; None if the environment gave none.
        finish: Why the generator stopped.
        generator_wait_s: Time from request to first decode.
        generate_s: Time spent decoding.
        environment_s: Time the environment took to answer.
    """

    reward: float | None
    finish: str
    generator_wait_s: float
    generate_s: float
    environment_s: float


class Sequence(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One branch of an episode, ready to be trained without its text.

    Args:
        tokens: [T] int32, everything the model saw and said, in order.
        action_spans: Where the policy's tokens lie; ascending, disjoint, inside T.
        behavior_logprobs: [A] float32, nats, for the action tokens in order.
        version_spans: Runs that together cover the A action tokens.
        sampling: The distribution that was sampled.
    """

    tokens: npt.NDArray[np.int32]
    action_spans: tuple[ActionSpan, ...]
    behavior_logprobs: npt.NDArray[np.float32]
    version_spans: tuple[VersionSpan, ...]
    sampling: Sampling

    def __post_init__(self) -> None:
        _check_array(self.tokens, np.int32, "tokens")
        _check_array(self.behavior_logprobs, np.float32, "behavior_logprobs")
        if not len(self.tokens):
            raise RecordError("empty_sequence", "a sequence needs at least one token")
        num_actions = _check_action_spans(self.action_spans, len(self.tokens))
        if num_actions != len(self.behavior_logprobs):
            raise RecordError(
                "logprob_mismatch",
                "every action token needs one logprob",
                got=len(self.behavior_logprobs),
                limit=num_actions,
            )
        _check_version_spans(self.version_spans, num_actions)
        if (lowest := np.minimum.reduce(self.tokens)) < 0:
            raise RecordError("bad_token", "token ids must not be negative", got=int(lowest))
        # NaN fails the comparison too; a hair above 0 is the rounding of a certain token.
        if num_actions and not (
            np.maximum.reduce(self.behavior_logprobs) <= 1e-3
            and np.minimum.reduce(self.behavior_logprobs) > -math.inf
        ):
            raise RecordError("logprob_nonfinite", "behavior_logprobs must be finite and at most 0")

    @property
    def num_action_tokens(self) -> int:
        """A, the number of tokens that the policy sampled."""
        return len(self.behavior_logprobs)

    def action_mask(self) -> npt.NDArray[np.bool_]:
        """Return [T] bool, true where the policy sampled the token."""
        mask = np.zeros(len(self.tokens), np.bool_)
        for span in self.action_spans:
            mask[span.start : span.stop] = True
        return mask


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """The record of one finished episode.

    Args:
        trajectory_id: Unique name; a second put of the same id is the same put.
        run_id: The run that asked for the episode.
        incarnation: The learner's incarnation that dispatched the group.
        group_id: The group it belongs to; advantages compare members of one group only.
        group_size: Number of members the group was dispatched with.
        member: Position in the group, 0 <= member < group_size.
        attempt: 0 for the first try at this member.
        task_id: The problem.
        environment: Name of the environment.
        sequences: One or more branches; every sampled token lies in exactly one action span of one branch.
        steps: One record per model call, in order.
        reward: Return of the episode; None if it could not be scored.
        terminated: The environment ended the episode.
        truncated: A limit ended it (turns, context, deadline).
        finish: What ended it.
        started_s: Wall clock at reset.
        finished_s: Wall clock at the end.
        admission_s: Time from claim to reset.
        metrics: Numbers that the environment reports; finite.
        tokenizer: Fingerprint of the tokenizer that made the ids.
        model: Fingerprint of the architecture that was sampled.
        reset_s: Time of the environment's reset; None in frames of format 1, which do not say.
    """

    trajectory_id: str
    run_id: str
    incarnation: Count
    group_id: str
    group_size: Count
    member: Count
    attempt: Count
    task_id: str
    environment: str
    sequences: tuple[Sequence, ...]
    steps: tuple[StepRecord, ...]
    reward: float | None
    terminated: bool
    truncated: bool
    finish: Finish
    started_s: float
    finished_s: float
    admission_s: float = 0.0
    metrics: dict[str, float] = {}
    tokenizer: str = ""
    model: str = ""
    reset_s: float | None = None

    def __post_init__(self) -> None:
        for what in ("trajectory_id", "run_id", "group_id", "task_id", "environment"):
            check_name(getattr(self, what), what)
        if not 0 <= self.member < self.group_size <= MAX_COUNT:
            raise RecordError(
                "bad_member", "member outside its group", got=self.member, limit=self.group_size
            )
        if not (0 <= self.incarnation <= MAX_COUNT and 0 <= self.attempt <= MAX_COUNT):
            raise RecordError(
                "bad_count", "incarnation and attempt count from 0", got=(self.incarnation, self.attempt)
            )
        if self.reward is not None and not math.isfinite(self.reward):
            raise RecordError("bad_reward", "reward must be finite, or None if unscored", got=self.reward)
        for name, value in self.metrics.items():
            if not math.isfinite(value):
                raise RecordError(
                    "bad_metric", f"metric {name[:MAX_NAME_LENGTH]!r} must be finite", got=value
                )
        times_s = (self.started_s, self.finished_s, self.admission_s, self.reset_s or 0.0)
        if not all(map(math.isfinite, times_s)):
            raise RecordError("bad_time", "times must be finite")
        _check_steps(self.steps)
        num_steps = len(self.steps)
        for sequence in self.sequences:
            # Spans ascend in place, not necessarily in step: every one is looked at.
            for span in sequence.action_spans:
                if span.step >= num_steps:
                    raise RecordError(
                        "bad_span", "action span of a step that has no record", got=span.step, limit=num_steps
                    )

    @property
    def num_tokens(self) -> int:
        """Tokens over all branches."""
        return sum(len(sequence.tokens) for sequence in self.sequences)

    @property
    def num_action_tokens(self) -> int:
        """Sampled tokens over all branches."""
        return sum(sequence.num_action_tokens for sequence in self.sequences)

    @property
    def oldest_version(self) -> PolicyVersion | None:
        """The oldest version that sampled a token; None if nothing was sampled."""
        return min(
            (span.version for sequence in self.sequences for span in sequence.version_spans), default=None
        )


def _check_array(array: npt.NDArray[Any], dtype: npt.DTypeLike, what: str) -> None:
    if array.dtype != dtype or array.ndim != 1:
        raise RecordError(
            "bad_array",
            f"{what} must be one-dimensional",
            got=f"{array.dtype}{list(array.shape)}",
            limit=str(np.dtype(dtype)),
        )


def _check_action_spans(spans: tuple[ActionSpan, ...], num_tokens: int) -> int:
    """Return the number of tokens that ascending, disjoint spans cover."""
    end = num_actions = 0
    for span in spans:
        if not end <= span.start < span.stop <= num_tokens or span.step < 0:
            raise RecordError("bad_span", "action span outside its sequence", got=span, limit=num_tokens)
        end = span.stop
        num_actions += span.stop - span.start
    return num_actions


def _check_version_spans(spans: tuple[VersionSpan, ...], num_actions: int) -> None:
    num_versioned = 0
    for span in spans:
        version, kv_version = span.version, span.kv_version
        if kv_version > version:
            raise RecordError("version_mismatch", "a cache cannot be newer than its token", got=span)
        if not (
            0 <= kv_version[0] <= version[0] <= MAX_COUNT
            and 0 <= version[1] <= MAX_COUNT
            and 0 <= kv_version[1] <= MAX_COUNT
        ):
            raise RecordError("bad_count", "versions count from 0", got=span)
        if not 0 < span.num_tokens <= MAX_COUNT:
            raise RecordError("version_mismatch", "a version span must cover at least one token", got=span)
        num_versioned += span.num_tokens
    if num_versioned != num_actions:
        raise RecordError(
            "version_mismatch", "every action token needs one version", got=num_versioned, limit=num_actions
        )


def _check_steps(steps: tuple[StepRecord, ...]) -> None:
    for step in steps:
        if step.reward is not None and not math.isfinite(step.reward):
            raise RecordError("bad_reward", "a step's reward must be finite, or None", got=step.reward)
        if not math.isfinite(step.generator_wait_s + step.generate_s + step.environment_s):
            raise RecordError("bad_time", "a step's times must be finite", got=step)
