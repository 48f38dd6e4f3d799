"""Byte-level BPE tokenizers from a bare vocabulary, as model files without a `tokenizer.json` carry it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from forebay.chat.kinds import NAME_ANOTHER, add_special_tokens, token_ids
from forebay.errors import ModelError

# As the models' own files write them; llama.cpp spells out what the letters' case is ignored in.
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN_2: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
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
            remedy=NAME_ANOTHER,
        )
    split = SPLITS[vocabulary.split]
    tokenizer = Tokenizer(_bpe(vocabulary, keeps_words=split.keeps_words))
    if split.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    add_special_tokens(tokenizer, vocabulary.tokens, vocabulary.kinds, vocabulary.bos_id)
    return tokenizer


def _bpe(vocabulary: BpeVocabulary, *, keeps_words: bool) -> models.BPE:
    ids = token_ids(vocabulary.tokens, vocabulary.kinds)
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
        "ignore_merges": keeps_words,
    }
    return models.BPE(**arguments)


def _bytes_only() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_apart() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes_only()])


def _by(pattern: str) -> Callable[[], Any]:
    def make() -> Any:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    return make


class Split(NamedTuple):
    """How text is cut before merging, and what goes with it.

    Attributes:
        pre_tokenizer: Makes what cuts.
        keeps_words: Whether a piece that is a token stays whole, whatever the merges say.
        composes: Whether letters and their accents are composed first, as the model's own tokenizer does.
        begins: Whether a text begins with the first token unless a file says otherwise.
    """

    pre_tokenizer: Callable[[], Any]
    keeps_words: bool = False
    composes: bool = False
    begins: bool = False


_LLAMA_3_SPLIT: Final = Split(_by(_LLAMA_3), keeps_words=True, begins=True)
SPLITS: Final[dict[str, Split]] = {
    "smollm": Split(_digits_apart),
    "starcoder": Split(_digits_apart),
    "refact": Split(_digits_apart),
    "gpt-2": Split(_bytes_only),
    "llama-bpe": _LLAMA_3_SPLIT,
    "llama3": _LLAMA_3_SPLIT,
    "llama-v3": _LLAMA_3_SPLIT,
    "qwen2": Split(_by(_QWEN_2), composes=True),
    "deepseek-r1-qwen": Split(_by(_QWEN_2)),
    "tekken": Split(_by(_TEKKEN), keeps_words=True, begins=True),
}
"""How text is cut before merging, by llama.cpp's name of it."""
