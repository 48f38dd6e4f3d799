from __future__ import annotations

import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from forebay.chat import Chat, ChatTemplate, small_chat
from forebay.report.samples import MAX_SAMPLES, pieces, read_samples, token_rules
from tests.unit.report.runs import CONFIG, make_run, make_trajectory

RULES = token_rules(CONFIG)


def read(run, rules=RULES):
    return read_samples(run / "samples", run / "model", rules)


def byte_chat() -> Chat:
    """A tokenizer of one byte a token: most characters beyond ASCII take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {character: index + 1 for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<end>{% endfor %}")
    return Chat(tokenizer.to_str().encode(), template)


def test_a_trajectory_becomes_messages_token_by_token(tmp_path) -> None:
    run = make_run(tmp_path / "run", trajectories={3: [make_trajectory()]})
    (sample,) = read(run).samples
    told, said = sample.branches[0]
    assert (told.speaker, told.text) == ("context", "<bos><user>7*6?<end><assistant>")
    assert [token.text for token in said.tokens] == ["4", "2", "<end>"]
    assert [token.version for token in said.tokens] == [1, 2, 2]
    assert said.tokens[-1].logprob == pytest.approx(-3.0)
    assert {token.reason for token in said.tokens} == {"fresh"}
    assert (sample.version, said.step, said.record.environment_s) == (3, 0, 1.5)


@pytest.mark.parametrize(
    ("version", "reward", "reasons"),
    [
        (3, None, {"unscored"}),
        (6, 1.0, {"fresh"}),  # version 5 is differentiated: 5 - 1 = max_staleness
        (7, 1.0, {"stale"}),
    ],
)
def test_tokens_that_are_not_trained_carry_the_learners_reason(tmp_path, version, reward, reasons) -> None:
    run = make_run(tmp_path / "run", trajectories={version: [make_trajectory(reward=reward)]})
    (sample,) = read(run).samples
    assert {token.reason for token in sample.branches[0][1].tokens} == reasons


def test_a_configuration_of_another_version_leaves_reasons_open(tmp_path) -> None:
    assert token_rules({"batching": {"no_such_setting": 1}}) is None
    run = make_run(tmp_path / "run", trajectories={3: [make_trajectory()]})
    (sample,) = read(run, None).samples
    assert {token.reason for token in sample.branches[0][1].tokens} == {""}


def test_samples_are_spread_over_the_run(tmp_path) -> None:
    run = make_run(tmp_path / "run", trajectories={v: [make_trajectory(f"t{v}")] for v in range(1, 49)})
    reading = read(run)
    versions = [sample.version for sample in reading.samples]
    assert (len(versions), versions[0], versions[-1], reading.num_stored) == (MAX_SAMPLES, 1, 48, 48)
    assert {b - a for a, b in itertools.pairwise(versions)} <= {6, 7}


def test_damaged_frames_are_named_and_the_others_shown(tmp_path) -> None:
    run = make_run(tmp_path / "run", trajectories={1: [make_trajectory("good")], 2: [make_trajectory("bad")]})
    path = run / "samples" / "00000002-bad.frame"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    (run / "samples" / "notes.frame").write_bytes(b"")
    reading = read(run)
    assert [sample.trajectory.trajectory_id for sample in reading.samples] == ["good"]
    assert ["00000002-bad.frame" in problem for problem in reading.problems] == [True]


def test_without_a_tokenizer_ids_are_shown(tmp_path) -> None:
    run = make_run(tmp_path / "run", trajectories={3: [make_trajectory()]})
    (run / "model" / "tokenizer.json").write_bytes(b"{}")
    reading = read(run)
    ids = [int(token.text.strip("[] ")) for token in reading.samples[0].branches[0][1].tokens]
    assert ids == [*small_chat().encode("42").tolist(), *small_chat().stop_tokens[:1]]
    assert "tokenizer" in reading.problems[0]


def test_long_trajectories_are_cut_and_say_so(tmp_path) -> None:
    run = make_run(tmp_path / "run", trajectories={3: [make_trajectory(told="7" * 6000)]})
    (sample,) = read(run).samples
    assert len(sample.branches[0][0].text) < 5000
    assert sample.num_cut_tokens == 6000 + 4 + 3 - 4000


def test_no_samples_are_no_problem(tmp_path) -> None:
    reading = read(make_run(tmp_path / "run"))
    assert (reading.samples, reading.num_stored, reading.problems) == ((), 0, ())


def test_characters_of_several_tokens_appear_once_they_are_whole() -> None:
    chat = byte_chat()
    ids = chat.encode("aé日b").tolist()
    assert pieces(chat, ids) == ["a", "", "é", "", "", "日", "b"]


def test_pieces_are_the_text_whatever_the_tokens() -> None:
    chat = byte_chat()
    ids = np.random.default_rng(5).integers(1, 257, 300).tolist()
    assert "".join(pieces(chat, ids)).replace("\ufffd", "") == chat.decode(np.array(ids, np.int32)).replace(
        "\ufffd", ""
    )
