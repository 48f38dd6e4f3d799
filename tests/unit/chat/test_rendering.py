from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash

from forebay.chat import Chat, ChatTemplate, Message, small_chat, small_tokenizer, write_small_chat
from forebay.errors import ModelError
from tests.unit.chat.tokenizers_for_tests import PLAIN, merging_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<user>' if m.role == 'user' else '<assistant>' }}\n"
    "{{ m.content | trim }}<end>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def small(template: str, **variables: str) -> Chat:
    return Chat(small_tokenizer().to_str().encode(), ChatTemplate(template, variables))


def test_the_small_tokenizer_is_stable() -> None:
    chat = small_chat()
    assert chat.vocabulary == 64
    assert chat.encode("<pad><bos><end>0z").tolist() == [0, 1, 2, 8, 63]
    assert chat.encode("É").tolist() == [3]
    assert chat.decode(chat.encode("17+25*3 = (ok)?")) == "17+25*3 = (ok)?"


def test_the_small_chat_is_a_hugging_face_directory(tmp_path: Path) -> None:
    write_small_chat(tmp_path)
    loaded = Chat.load(tmp_path)
    assert loaded.fingerprint == small_chat().fingerprint
    assert loaded.fingerprint == xxhash.xxh3_64_hexdigest((tmp_path / "tokenizer.json").read_bytes())
    messages = [Message("system", "s"), Message("user", "1+1")]
    assert loaded.render(messages) == "<bos><system>s<end><user>1+1<end><assistant>"
    assert loaded.stop_tokens == (2,)


def test_white_space_after_the_end_of_a_turn_belongs_to_the_next_prompt() -> None:
    chat = small(CHATML)
    assert chat.closing == "<end>"
    prompt = chat.render([Message("user", "a")])
    text, suffix = chat.continuation(
        prompt, [Message("user", "a"), Message("assistant", "b")], [Message("user", "c")]
    )
    assert suffix is not None
    assert chat.decode(suffix) == "\n<user>\nc<end>\n<assistant>\n"
    assert text == prompt + "b<end>" + chat.decode(suffix)


def test_a_template_that_trims_what_was_sampled_still_extends_it() -> None:
    chat = small(CHATML)
    history = [Message("user", "a"), Message("assistant", "b  ")]
    _, suffix = chat.continuation(chat.render(history[:1]), history, [Message("user", "c")])
    assert suffix is not None
    assert chat.decode(suffix) == "\n<user>\nc<end>\n<assistant>\n"


def test_every_end_token_stops_sampling(tmp_path: Path) -> None:
    write_small_chat(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["eos_token"] = {"content": "<unk>", "special": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Chat.load(tmp_path).stop_tokens == (2, 5, 3)


@pytest.mark.parametrize("form", ["file", "named"])
def test_where_templates_are_found(tmp_path: Path, form: str) -> None:
    (tmp_path / "tokenizer.json").write_text(merging_tokenizer().to_str())
    config: dict[str, object] = {"bos_token": "<bos>"}
    if form == "file":
        (tmp_path / "chat_template.jinja").write_text(PLAIN)
    else:
        config["chat_template"] = [
            {"name": "tool_use", "template": "x"},
            {"name": "default", "template": PLAIN},
        ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Chat.load(tmp_path).render([Message("user", "a")]) == "<bos><user>a<end><assistant>"


def test_padding_and_truncation_of_the_tokenizer_file_are_ignored() -> None:
    tokenizer = small_tokenizer()
    tokenizer.enable_padding(length=50, pad_token="<pad>")
    tokenizer.enable_truncation(2)
    chat = Chat(tokenizer.to_str().encode(), ChatTemplate(PLAIN, {"bos_token": ""}))
    assert len(chat.encode("12345")) == 5


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json in"),
        ({"tokenizer.json": "{", "chat_template.jinja": PLAIN}, "tokenizer.json does not load"),
        ({"tokenizer.json": small_tokenizer().to_str()}, "no chat template in"),
        (
            {"tokenizer.json": small_tokenizer().to_str(), "tokenizer_config.json": "[]"},
            "is not a JSON object",
        ),
        (
            {"tokenizer.json": small_tokenizer().to_str(), "chat_template.jinja": "{% for %}"},
            "chat template does not parse",
        ),
        (
            {"tokenizer.json": small_tokenizer().to_str(), "chat_template.jinja": "{{ messages }}"},
            "ends a message with no special token",
        ),
    ],
)
def test_what_is_wrong_with_a_directory_is_said(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        Chat.load(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[99].content }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_fails_or_attacks_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="cannot render"):
        ChatTemplate(source).render([Message("user", "a")], add_generation_prompt=True)


def test_a_template_cannot_write_without_end() -> None:
    source = "{% for i in range(1000) %}{% for j in range(1000) %}" + "x" * 100 + "{% endfor %}{% endfor %}"
    with pytest.raises(ModelError, match="writes too much"):
        ChatTemplate(source).render([], add_generation_prompt=False)


def test_json_in_templates_is_plain() -> None:
    template = ChatTemplate("{{ messages[0].content | tojson }}")
    assert template.render([Message("user", "<é'>")], add_generation_prompt=False) == '"<é\'>"'
