"""From turns to training sequences: ids that were sampled are kept as they are, each in exactly one branch.

Legend: T tokens of a sequence, A action tokens of a sequence, N tokens of one completion.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np

from forebay.chat.messages import Message
from forebay.chat.rendering import Chat, Tokens
from forebay.errors import RecordError
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, Sequence, VersionSpan


class SampledTokens(Protocol):
    """What a generator returned, as far as training needs it."""

    @property
    def tokens(self) -> Tokens:
        """[N] int32, the stop token included."""
        ...

    @property
    def logprobs(self) -> np.typing.NDArray[np.float32]:
        """[N] float32, nats."""
        ...

    @property
    def version_spans(self) -> tuple[VersionSpan, ...]:
        """Runs that cover the N tokens."""
        ...


class SequenceBuilder:
    """Collects the tokens of an episode into one sequence, or several when a prompt does not extend the last.

    Args:
        sampling: The distribution that completions are drawn from.

    Attributes:
        branches: How many times a prompt started over.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._done: list[Sequence] = []
        self.branches = 0
        self._tokens: Tokens = np.zeros(0, np.int32)
        self._restart(self._tokens)

    def add_prompt(self, tokens: Tokens) -> None:
        """Continue with a whole prompt: extend the sequence if the prompt does, else fork into another.

        Args:
            tokens: [P] int32, everything that the model will see.
        """
        if np.array_equal(tokens[: len(self._tokens)], self._tokens):
            self._tokens = tokens
            return
        self._finish_branch()
        self.branches += 1
        self._restart(tokens)

    def append(self, tokens: Tokens) -> None:
        """Continue with [S] int32 tokens that the policy did not sample."""
        self._tokens = np.concatenate((self._tokens, tokens))

    def add_completion(self, completion: SampledTokens, step: int) -> None:
        """Continue with what the policy sampled; every token of it is trained, the stop token too.

        Args:
            completion: N tokens with their logprobs and versions.
            step: The model call that sampled them.

        Raises:
            RecordError: Logprobs or versions do not match the tokens one to one; nothing is padded or cut.
        """
        num_tokens, num_logprobs = len(completion.tokens), len(completion.logprobs)
        if num_logprobs != num_tokens:
            raise RecordError(
                "logprob_mismatch",
                "a token needs one logprob",
                got=num_logprobs,
                limit=num_tokens,
            )
        num_versioned = sum(span.num_tokens for span in completion.version_spans)
        if num_versioned != num_tokens:
            raise RecordError(
                "version_mismatch",
                "a token needs one version",
                got=num_versioned,
                limit=num_tokens,
            )
        if not num_tokens:
            return
        start = len(self._tokens)
        self.append(completion.tokens)
        self._spans.append(ActionSpan(start, start + num_tokens, step))
        self._logprobs.append(completion.logprobs)
        for span in completion.version_spans:
            self._add_version(span)

    def prompt(self) -> Tokens:
        """Return [T] int32, the tokens of the current branch."""
        return self._tokens

    def build(self) -> tuple[Sequence, ...]:
        """Return the branches that hold sampled tokens; what follows the last of them is left out."""
        return (*self._done, *self._branch())

    def _add_version(self, span: VersionSpan) -> None:
        last = self._versions[-1] if self._versions else None
        if last and (last.version, last.kv_version) == (span.version, span.kv_version):
            span = VersionSpan(last.num_tokens + span.num_tokens, span.version, span.kv_version)
            self._versions.pop()
        self._versions.append(span)

    def _branch(self) -> tuple[Sequence, ...]:
        if not self._spans:
            return ()
        return (
            Sequence(
                tokens=self._tokens[: self._spans[-1].stop],
                action_spans=tuple(self._spans),
                behavior_logprobs=np.concatenate(self._logprobs),
                version_spans=tuple(self._versions),
                sampling=self._sampling,
            ),
        )

    def _finish_branch(self) -> None:
        self._done.extend(self._branch())

    def _restart(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._spans: list[ActionSpan] = []
        self._logprobs: list[np.typing.NDArray[np.float32]] = []
        self._versions: list[VersionSpan] = []


class Conversation:
    """One episode's messages and tokens, kept in step.

    Args:
        chat: Tokenizer and template.
        sampling: The distribution that completions are drawn from.
    """

    def __init__(self, chat: Chat, sampling: Sampling) -> None:
        self._chat = chat
        self._builder = SequenceBuilder(sampling)
        self._messages: list[Message] = []
        self._prompt_text = ""
        self._closed = True

    @property
    def branches(self) -> int:
        """How many times the template rewrote history."""
        return self._builder.branches

    def observe(self, messages: Seq[Message]) -> Tokens:
        """Add what the environment said; return [P] int32, the prompt of the next model call.

        Raises:
            ModelError: The template cannot render the conversation.
        """
        if not self._prompt_text:
            self._prompt_text = self._chat.render(messages)
            self._builder.add_prompt(self._chat.encode(self._prompt_text))
        else:
            self._prompt_text, suffix = self._chat.continuation(self._prompt_text, self._messages, messages)
            self._extend(suffix)
        self._messages.extend(messages)
        return self._builder.prompt()

    def act(self, completion: SampledTokens, step: int) -> str:
        """Add what the model said; return it as text without the stop token.

        Raises:
            RecordError: The completion contradicts itself.
        """
        self._builder.add_completion(completion, step)
        self._closed = self._chat.is_closed(completion.tokens)
        text = self._chat.spoken(completion.tokens)
        self._messages.append(Message("assistant", text))
        return text

    def sequences(self) -> tuple[Sequence, ...]:
        """Return the training sequences so far."""
        return self._builder.build()

    def _extend(self, suffix: Tokens | None) -> None:
        if suffix is None:
            self._builder.add_prompt(self._chat.encode(self._prompt_text))
            return
        if not self._closed:
            # A message that was cut gets the end that the template gives every message; it is not trained.
            self._builder.append(self._chat.encode(self._chat.closing))
        self._builder.append(suffix)


class _Certain:
    """A message taken from a demonstration: there is no behavior policy, so its logprobs are 0."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.logprobs = np.zeros(len(tokens), np.float32)
        origin = PolicyVersion(0, 0)
        self.version_spans = (VersionSpan(len(tokens), origin, origin),)


def supervised(chat: Chat, messages: Seq[Message]) -> tuple[Sequence, ...]:
    """Return the training sequences of a demonstration: assistant messages, with their ends, are actions.

    Args:
        chat: Tokenizer and template.
        messages: A whole conversation.

    Returns:
        Sequences with behavior_logprobs 0; one unless the template rewrites history.
    """
    conversation = Conversation(chat, Sampling())
    pending: list[Message] = []
    step = 0
    for message in messages:
        if message.role != "assistant":
            pending.append(message)
            continue
        conversation.observe(pending)
        tokens = np.append(chat.encode(message.content), np.int32(chat.stop_tokens[0]))
        conversation.act(_Certain(tokens.astype(np.int32)), step)
        pending.clear()
        step += 1
    return conversation.sequences()
