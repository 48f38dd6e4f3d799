"""SentencePiece BPE tokenizers from a bare vocabulary with scores, as GGUF files carry it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers

from forebay.chat.kinds import BYTE, NAME_ANOTHER, NORMAL, add_special_tokens, token_ids
from forebay.errors import ModelError

# What stands for a space.
_SPACE: Final = "\u2581"
_NUM_BYTES: Final = 256


class SpmVocabulary(NamedTuple):
    """What a SentencePiece BPE tokenizer is made of.

    Args:
        tokens: Text of every id, spaces as `\u2581`.
        kinds: Kind of every id, by ggml's numbers: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
            6 one byte.
        scores: Of every id: of two merges that are possible, the one whose result scores higher comes first.
        unknown_id: Id of what cannot be spelled.
        space_prefix: Whether a text gets a space before it.
        bos_id: Id put before a text, or None if none is.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    unknown_id: int
    space_prefix: bool = True
    bos_id: int | None = None


def spm_tokenizer(vocabulary: SpmVocabulary) -> Tokenizer:
    """Make a tokenizer; ids are positions in `vocabulary.tokens`, and unused ones at its end are left out.

    Characters that no token has are spelled in bytes. A text is not normalized, and after each control token
    in it a new one begins, as llama.cpp has it.

    Args:
        vocabulary: Tokens, scores, and what is put before a text.

    Returns:
        A tokenizer that recognizes control and user-defined tokens in text.

    Raises:
        ModelError: Tokens occur twice, have no score, or not every byte has one.

    References:
        Kudo and Richardson 2018, SentencePiece, section 3.1: merges are what the vocabulary's order implies.
        llama.cpp, `src/llama-vocab.cpp`, `llm_tokenizer_spm_session`.
    """
    ids = token_ids(vocabulary.tokens, vocabulary.kinds)
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise ModelError("a token needs one score", got=len(vocabulary.scores), limit=len(vocabulary.tokens))
    num_bytes = sum(kind == BYTE for kind in vocabulary.kinds)
    if num_bytes != _NUM_BYTES:
        raise ModelError(
            "the vocabulary must have a token of every byte",
            got=num_bytes,
            limit=_NUM_BYTES,
            remedy=NAME_ANOTHER,
        )
    arguments: dict[str, Any] = {
        "vocab": ids,
        "merges": _merges(vocabulary, ids),
        "unk_token": vocabulary.tokens[vocabulary.unknown_id],
        "fuse_unk": True,
        "byte_fallback": True,
    }
    tokenizer = Tokenizer(models.BPE(**arguments))
    prefix = [normalizers.Prepend(_SPACE)] if vocabulary.space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    add_special_tokens(tokenizer, vocabulary.tokens, vocabulary.kinds, vocabulary.bos_id)
    return tokenizer


def _merges(vocabulary: SpmVocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs whose concatenation is a token, the highest score first; of equals the lowest id."""
    plain = {token: token_id for token, token_id in ids.items() if vocabulary.kinds[token_id] == NORMAL}
    ranked = sorted(plain, key=lambda token: (-vocabulary.scores[plain[token]], plain[token]))
    return [pair for token in ranked for pair in _pairs(token, plain)]


def _pairs(token: str, plain: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the ways to put a token together from two, those of the commonest pieces first."""
    cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
    found = [pair for pair in cuts if pair[0] in plain and pair[1] in plain]
    yield from sorted(found, key=lambda pair: (plain[pair[0]], plain[pair[1]]))
