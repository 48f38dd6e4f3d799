"""What was sampled is what is trained: token ids are never made again from text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from forebay.chat import Chat, Conversation, Message, SequenceBuilder, small_chat, supervised
from forebay.errors import RecordError
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, VersionSpan
from tests.unit.chat.tokenizers_for_tests import merging_chat, thinking_chat

V0, V1 = PolicyVersion(0, 0), PolicyVersion(0, 1)


@dataclass
class Sampled:
    tokens: Any
    logprobs: Any
    version_spans: tuple[VersionSpan, ...]


def sampled(tokens: list[int], version: PolicyVersion = V0, logprob: float = -0.5) -> Sampled:
    return Sampled(
        np.array(tokens, np.int32),
        np.full(len(tokens), logprob, np.float32),
        (VersionSpan(len(tokens), version, version),),
    )


def ids(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


def test_c01_sampled_ids_survive_a_tokenizer_that_is_no_bijection() -> None:
    chat = merging_chat()
    he, llo, hello = (chat.encode(text)[0] for text in ("he", "llo", "hello"))
    assert chat.encode("hello").tolist() == [hello]  # decode then encode would train another id
    conversation = Conversation(chat, Sampling())
    prompt = conversation.observe([Message("user", "o")])
    assert conversation.act(sampled([he, llo, chat.stop_tokens[0]]), 0) == "hello"
    following = conversation.observe([Message("tool", "o")])
    assert following[: len(prompt) + 3].tolist() == [*prompt, he, llo, chat.stop_tokens[0]]
    assert following[len(prompt) + 3 :].tolist() == chat.encode("<tool>o<end><assistant>").tolist()
    (sequence,) = conversation.sequences()
    assert sequence.tokens.tolist() == [*prompt, he, llo, chat.stop_tokens[0]]
    assert sequence.action_mask().tolist() == [False] * len(prompt) + [True] * 3


def test_c01_the_published_case() -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(5))
    builder.add_completion(
        Sampled(
            ids(2, 3, 1), np.array([-1.672649, -1.290881, -1.645927], np.float32), (VersionSpan(3, V0, V0),)
        ),
        0,
    )
    (sequence,) = builder.build()
    assert sequence.tokens.tolist() == [5, 2, 3, 1]
    assert sequence.behavior_logprobs.sum() == pytest.approx(-4.609456, abs=1e-5)


@pytest.mark.parametrize("num_logprobs", [3, 5])
def test_c02_c03_logprobs_that_do_not_match_are_refused(num_logprobs: int) -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(5))
    wrong = Sampled(ids(2, 3, 6, 1), np.full(num_logprobs, -1.0, np.float32), (VersionSpan(4, V0, V0),))
    with pytest.raises(RecordError, match=rf"got {num_logprobs}, limit 4") as caught:
        builder.add_completion(wrong, 0)
    assert caught.value.reason == "logprob_mismatch"
    assert builder.build() == ()


def test_versions_that_do_not_match_are_refused() -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(5))
    with pytest.raises(RecordError) as caught:
        builder.add_completion(Sampled(ids(2, 3), np.zeros(2, np.float32), (VersionSpan(1, V0, V0),)), 0)
    assert caught.value.reason == "version_mismatch"


def test_c04_a_prompt_that_does_not_extend_forks() -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(10, 40, 2, 11))
    builder.add_completion(sampled([20, 21, 30, 2]), 0)
    builder.add_prompt(ids(10, 40, 2, 11, 30, 2, 10, 41, 2, 11))
    builder.add_completion(sampled([20, 22, 31, 2], V1), 1)
    first, second = builder.build()
    assert first.tokens.tolist() == [10, 40, 2, 11, 20, 21, 30, 2]
    assert second.tokens.tolist() == [10, 40, 2, 11, 30, 2, 10, 41, 2, 11, 20, 22, 31, 2]
    assert first.action_mask().astype(int).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert second.action_mask().astype(int).tolist() == [0] * 10 + [1] * 4
    assert first.num_action_tokens + second.num_action_tokens == 8
    assert [span.step for sequence in (first, second) for span in sequence.action_spans] == [0, 1]
    assert builder.branches == 1


def test_c04_a_template_that_strips_thinking_forks_at_the_next_question() -> None:
    chat = thinking_chat()
    conversation = Conversation(chat, Sampling())
    conversation.observe([Message("user", "q")])
    thought = [*chat.encode("<think>abc</think>d"), chat.stop_tokens[0]]
    conversation.act(sampled(thought), 0)
    conversation.observe([Message("tool", "t")])
    assert conversation.branches == 0  # the template keeps thinking within a turn of tools
    conversation.act(sampled(thought), 1)
    following = conversation.observe([Message("user", "r")])
    assert (
        chat.decode(following)
        == "<bos><user>q<end><assistant>d<end><tool>t<end><assistant>d<end><user>r<end><assistant>"
    )
    assert conversation.branches == 1
    conversation.act(sampled(thought), 2)
    sequences = conversation.sequences()
    assert [s.num_action_tokens for s in sequences] == [2 * len(thought), len(thought)]
    assert [span.step for s in sequences for span in s.action_spans] == [0, 1, 2]


def test_c04_without_thinking_nothing_is_stripped_and_nothing_forks() -> None:
    chat = thinking_chat()
    conversation = Conversation(chat, Sampling())
    for step, question in enumerate("qr"):
        conversation.observe([Message("user", question)])
        conversation.act(sampled([*chat.encode("d"), chat.stop_tokens[0]]), step)
    assert conversation.branches == 0
    assert len(conversation.sequences()) == 1


def test_c08_a_turn_that_was_cut_is_closed_by_a_token_that_is_not_trained() -> None:
    chat = small_chat()
    conversation = Conversation(chat, Sampling())
    prompt = conversation.observe([Message("user", "1")])
    conversation.act(sampled(chat.encode("23").tolist()), 0)
    assert chat.decode(conversation.observe([Message("tool", "4")])).endswith(
        "23<end><tool>4<end><assistant>"
    )
    conversation.act(sampled([*chat.encode("5"), 2]), 1)
    (sequence,) = conversation.sequences()
    assert sequence.action_spans == (
        ActionSpan(len(prompt), len(prompt) + 2, 0),
        ActionSpan(len(prompt) + 7, len(prompt) + 9, 1),
    )
    assert sequence.tokens[-1] == 2
    assert sequence.action_mask()[-1]


def test_what_follows_the_last_action_is_left_out() -> None:
    chat = small_chat()
    conversation = Conversation(chat, Sampling())
    conversation.observe([Message("user", "1")])
    conversation.act(sampled([*chat.encode("5"), 2]), 0)
    conversation.observe([Message("tool", "999999")])
    assert chat.decode(conversation.sequences()[0].tokens).endswith("<assistant>5<end>")


def test_versions_are_kept_per_token_as_spans() -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(1))
    builder.add_completion(
        Sampled(ids(2, 3, 4), np.zeros(3, np.float32), (VersionSpan(1, V0, V0), VersionSpan(2, V1, V0))), 0
    )
    builder.append(ids(5))
    builder.add_completion(Sampled(ids(6), np.zeros(1, np.float32), (VersionSpan(1, V1, V0),)), 1)
    assert builder.build()[0].version_spans == (VersionSpan(1, V0, V0), VersionSpan(3, V1, V0))


def test_an_empty_completion_leaves_no_trace() -> None:
    builder = SequenceBuilder(Sampling())
    builder.add_prompt(ids(1))
    builder.add_completion(Sampled(ids(), np.zeros(0, np.float32), ()), 0)
    assert builder.build() == ()


def test_a_demonstration_is_rendered_as_if_it_had_been_sampled() -> None:
    chat = small_chat()
    messages = [
        Message("user", "17+25"),
        Message("assistant", "17+25="),
        Message("tool", "42"),
        Message("assistant", "#42"),
    ]
    (sequence,) = supervised(chat, messages)
    assert chat.decode(sequence.tokens) == chat.render(messages, add_generation_prompt=False)
    trained = chat.decode(sequence.tokens[sequence.action_mask()])
    assert trained == "17+25=<end>#42<end>"
    assert not sequence.behavior_logprobs.any()


def test_tokens_of_a_chat_can_be_split_anywhere() -> None:
    """The incremental rendering equals the whole one, whatever the number of turns."""
    chat: Chat = small_chat()
    conversation = Conversation(chat, Sampling())
    messages: list[Message] = []
    for step in range(6):
        new = [Message("tool" if step else "user", f"{step}+"), Message("tool", "x")]
        prompt = conversation.observe(new)
        messages += new
        assert prompt.tolist() == chat.encode(chat.render(messages)).tolist()
        conversation.act(sampled([*chat.encode(f"#{step}"), 2]), step)
        messages.append(Message("assistant", f"#{step}"))
