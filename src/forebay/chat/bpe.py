"""Byte-level BPE tokenizers from a bare vocabulary, as model files without a `tokenizer.json` carry it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from forebay.errors import ModelError

# Kinds of tokens, by ggml's numbers.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_LLAMA_3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class BpeVocabulary(NamedTuple):
    """What a byte-level BPE tokenizer is made of.

    Args:
        tokens: Text of every id, in the printable alphabet of GPT-2.
        kinds: Kind of every id, by ggml's numbers: 3 control, 4 user-defined, 5 unused; the rest is plain.
        merges: Pairs of texts separated by a space, the most important first.
        split: How text is cut before merging, by llama.cpp's name; a key of `SPLITS`.
        bos_id: Id put before a text, or None if none is.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    split: str
    bos_id: int | None = None


def bpe_tokenizer(vocabulary: BpeVocabulary) -> Tokenizer:
    """Make a tokenizer; ids are positions in `vocabulary.tokens`, and unused ones at its end are left out.

    Args:
        vocabulary: Tokens, merges, and how text is cut.

    Returns:
        A tokenizer that recognizes control and user-defined tokens in text.

    Raises:
        ModelError: An unknown split, tokens that occur twice, or merges of tokens that do not exist.

    References:
        Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units, section 3.2.
        Radford et al. 2019 (GPT-2), section 2.2, for the bytes and the split.
    """
    if vocabulary.split not in SPLITS:
        raise ModelError(
            "unsupported pre-tokenizer",
            got=repr(vocabulary.split),
            limit=", ".join(map(repr, SPLITS)),
            remedy="Name the directory of the model's own tokenizer.json in model.tokenizer.",
        )
    tokenizer = Tokenizer(_bpe(vocabulary))
    tokenizer.pre_tokenizer = SPLITS[vocabulary.split]()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    if vocabulary.bos_id is not None:
        bos = vocabulary.tokens[vocabulary.bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, vocabulary.bos_id)]
        )
    return tokenizer


def _bpe(vocabulary: BpeVocabulary) -> models.BPE:
    tokens, kinds = list(vocabulary.tokens), list(vocabulary.kinds)
    if len(tokens) != len(kinds):
        raise ModelError("a token needs one kind", got=len(kinds), limit=len(tokens))
    while kinds and kinds[-1] == _UNUSED:
        kinds.pop()
    ids = {token: token_id for token_id, token in enumerate(tokens[: len(kinds)])}
    if len(ids) != len(kinds):
        raise ModelError("the vocabulary has a token twice", got=f"{len(kinds)} ids, {len(ids)} tokens")
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise ModelError("a merge needs two tokens", got=repr(" ".join(wrong)))
    unknown = next((piece for a, b in merges for piece in (a, b, a + b) if piece not in ids), None)
    if unknown is not None:
        raise ModelError(f"the merges do not fit the vocabulary, which has no {unknown!r}")
    arguments: dict[str, Any] = {
        "vocab": ids,
        "merges": merges,
        "ignore_merges": vocabulary.split == "llama-bpe",
    }
    return models.BPE(**arguments)


def _bytes_only() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_apart() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes_only()])


def _llama_3() -> Any:
    cut = pre_tokenizers.Split(Regex(_LLAMA_3), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITS: Final[dict[str, Callable[[], Any]]] = {
    "smollm": _digits_apart,
    "starcoder": _digits_apart,
    "refact": _digits_apart,
    "gpt-2": _bytes_only,
    "llama-bpe": _llama_3,
}
"""How text is cut before merging, by llama.cpp's name of it."""
