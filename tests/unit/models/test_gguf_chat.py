from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from tokenizers import Tokenizer

from forebay.chat import Chat, Message
from forebay.errors import ModelError
from forebay.models.gguf_chat import tokenizer_files
from forebay.models.gguf_file import read_gguf
from forebay.models.source import source_chat, source_tokenizer_files
from tests.unit.models import gguf_files


def write(path: Path, **changes: Any) -> Path:
    return gguf_files.write(path / "m.gguf", gguf_files.tensors_of("tiny-vocab40"), **changes)


def test_ids_are_positions_and_special_tokens_are_recognized(tmp_path: Path) -> None:
    chat = source_chat(write(tmp_path))
    assert chat.encode("<|start|>hello hell<|end|><|tool|>").tolist() == [1, 35, 17, 29, 35, 2, 36]
    assert chat.decode(chat.encode("hello hell")) == "hello hell"
    assert (chat.vocabulary, chat.stop_tokens, chat.closing) == (37, (2,), "<|end|>")
    assert chat.render([Message("user", "hell")]) == "<|start|>user hell<|end|><|start|>assistant "


@pytest.mark.parametrize(("split", "ids"), [("smollm", [30, 31]), ("gpt-2", [32]), ("llama-bpe", [32])])
def test_digits_are_cut_apart_where_the_model_was_trained_so(
    tmp_path: Path, split: str, ids: list[int]
) -> None:
    assert source_chat(write(tmp_path, tokenizer__ggml__pre=split)).encode("12").tolist() == ids


def test_the_directory_has_the_same_chat(tmp_path: Path) -> None:
    path = write(tmp_path, tokenizer__ggml__eot_token_id=36)
    for name, content in source_tokenizer_files(path).items():
        (tmp_path / name).write_bytes(content)
    chat, loaded = source_chat(path), Chat.load(tmp_path)
    assert loaded.fingerprint == chat.fingerprint
    assert loaded.stop_tokens == chat.stop_tokens == (2, 36)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|start|>",
        "<|end|>",
        "<|pad|>",
    )
    assert "unk_token" not in config
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 36], "pad_token_id": 0}
    assert source_tokenizer_files(tmp_path) == source_tokenizer_files(path)


def test_a_text_begins_with_bos_for_others_where_the_model_wants_it(tmp_path: Path) -> None:
    path = write(tmp_path, tokenizer__ggml__add_bos_token=True)
    tokenizer = Tokenizer.from_str(tokenizer_files(read_gguf(path))["tokenizer.json"].decode())
    assert tokenizer.encode("he").ids == [1, 33]
    # Templates write it themselves.
    assert source_chat(path).encode("he").tolist() == [33]


def test_sentencepiece_vocabularies_are_read(tmp_path: Path) -> None:
    spm = json.loads((gguf_files.GOLDEN.parent / "gguf_tokenizers.json").read_text())["spm"]
    changes: dict[str, Any] = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": spm["tokens"],
        "tokenizer__ggml__scores": spm["scores"],
        "tokenizer__ggml__token_type": spm["kinds"],
        "tokenizer__chat_template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    }
    changes |= {f"tokenizer__ggml__{name}_token_id": None for name in ("bos", "eos", "padding")}
    path = write(tmp_path, **changes)
    chat = source_chat(path)
    # What llama.cpp takes where the file does not say: 1 begins, 2 ends, and a space comes first.
    assert (chat.stop_tokens, chat.closing) == ((2,), "</s>")
    tokenizer = Tokenizer.from_str(tokenizer_files(read_gguf(path))["tokenizer.json"].decode())
    assert tokenizer.encode("the").tokens == ["<s>", "\u2581the"]
    assert chat.decode(chat.encode("the store")) == "the store"
    bare = {"tokenizer__ggml__add_space_prefix": False, "tokenizer__ggml__add_bos_token": False}
    files = tokenizer_files(read_gguf(write(tmp_path, **changes, **bare)))
    tokens = Tokenizer.from_str(files["tokenizer.json"].decode()).encode("the").tokens
    assert "".join(tokens) == "the"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"tokenizer__ggml__model": "bert"},
            "unsupported tokenizer.ggml.model in .*got 'bert', limit 'gpt2', 'llama'",
        ),
        ({"tokenizer__ggml__model": "llama"}, "no list of numbers tokenizer.ggml.scores"),
        ({"tokenizer__ggml__pre": "falcon"}, "unsupported pre-tokenizer .*got 'falcon', limit 'smollm'"),
        ({"tokenizer__ggml__pre": None}, "unsupported pre-tokenizer .*got ''"),
        ({"tokenizer__ggml__tokens": None}, "no list of texts tokenizer.ggml.tokens"),
        ({"tokenizer__ggml__merges": [1, 2]}, "no list of texts tokenizer.ggml.merges"),
        ({"tokenizer__ggml__merges": ["h e l"]}, "a merge needs two tokens .*'h e l'"),
        ({"tokenizer__ggml__merges": ["x y"]}, "merges do not fit the vocabulary, which has no 'xy'"),
        ({"tokenizer__ggml__merges": ["h ä"]}, "merges do not fit the vocabulary, which has no 'ä'"),
        ({"tokenizer__ggml__token_type": [1, 1]}, "a token needs one kind .*got 2, limit 40"),
        ({"tokenizer__ggml__tokens": ["a"] * 40}, "a token twice"),
        ({"tokenizer__ggml__eos_token_id": 40}, "eos_token_id of .* is no id .*got 40, limit 40"),
        ({"tokenizer__chat_template": None}, "has no tokenizer.chat_template.*instruction-tuned"),
    ],
)
def test_what_is_wrong_with_a_tokenizer_is_said(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        tokenizer_files(read_gguf(write(tmp_path, **changes)))
