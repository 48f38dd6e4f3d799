"""Tokenizers made of bare vocabularies, against llama.cpp, sentencepiece and transformers.

`scripts/golden_gguf_tokenizers.py` trained the vocabularies and made the expected ids.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from forebay.chat.bpe import SPLITS, BpeVocabulary, bpe_tokenizer
from forebay.chat.spm import SpmVocabulary, spm_tokenizer

GOLDEN = json.loads((Path(__file__).parent / "gguf_tokenizers.json").read_text())
SPM, BPE = GOLDEN["spm"], GOLDEN["bpe"]


def spm(*, space_prefix: bool) -> Tokenizer:
    vocabulary = SpmVocabulary(SPM["tokens"], SPM["kinds"], SPM["scores"], 0, space_prefix=space_prefix)
    return spm_tokenizer(vocabulary)


def bpe(split: str) -> Tokenizer:
    return bpe_tokenizer(BpeVocabulary(BPE["tokens"], BPE["kinds"], BPE["merges"], split))


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("which", ["prefix", "no prefix"])
def test_sentencepiece_ids_are_those_of_llama_cpp(which: str) -> None:
    tokenizer = spm(space_prefix=which == "prefix")
    assert ids_of(tokenizer, GOLDEN["texts"]) == GOLDEN["spm_ids"][which]


def test_sentencepiece_ids_are_those_of_sentencepiece() -> None:
    """But after a user-defined token: llama.cpp and the models' own files put a space there, too."""
    expected = GOLDEN["spm_ids"]["sentencepiece"]
    found = ids_of(spm(space_prefix=True), GOLDEN["texts"][: len(expected)])
    differing = [GOLDEN["texts"][number] for number, ids in enumerate(expected) if ids != found[number]]
    assert differing == [text for text in GOLDEN["texts"][: len(expected)] if "\n\n" in text]


def test_sentencepiece_ids_come_back_as_the_text() -> None:
    tokenizer = spm(space_prefix=False)
    texts = [text for text in GOLDEN["texts"] if "\u2581" not in text]
    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in ids_of(tokenizer, texts)] == texts
    prefixed = spm(space_prefix=True)
    assert prefixed.decode(prefixed.encode("Hello, wörld \U0001f642").ids) == "Hello, wörld \U0001f642"


@pytest.mark.parametrize("split", list(GOLDEN["bpe_ids"]))
def test_byte_level_ids_are_those_of_llama_cpp(split: str) -> None:
    assert ids_of(bpe(split), GOLDEN["texts"]) == GOLDEN["bpe_ids"][split]


def test_qwen_ids_are_those_of_transformers_accents_composed() -> None:
    golden = GOLDEN["qwen2"]
    assert ids_of(bpe("qwen2"), golden["texts"]) == golden["ids"]
    assert ids_of(bpe("deepseek-r1-qwen"), golden["texts"]) != golden["ids"]


def test_the_texts_tell_the_splits_apart() -> None:
    found = {split: ids_of(bpe(split), GOLDEN["texts"]) for split in SPLITS}
    assert found["llama3"] == found["llama-v3"] == found["llama-bpe"]
    distinct = [found[split] for split in ("llama-bpe", "qwen2", "tekken")]
    assert all(one != other for number, one in enumerate(distinct) for other in distinct[:number])
