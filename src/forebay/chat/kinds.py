"""Kinds of tokens in a bare vocabulary, by ggml's numbers, and what a tokenizer does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer, processors

from forebay.errors import ModelError

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
BYTE: Final = 6
NAME_ANOTHER: Final = "Name the directory of the model's own tokenizer.json in model.tokenizer."


def token_ids(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Return the id of every token; unused ones at the end are left out.

    Args:
        tokens: Text of every id.
        kinds: Kind of every id.

    Raises:
        ModelError: A token has no kind, or occurs twice.
    """
    if len(tokens) != len(kinds):
        raise ModelError("a token needs one kind", got=len(kinds), limit=len(tokens))
    used = len(kinds)
    while used and kinds[used - 1] == UNUSED:
        used -= 1
    ids = {token: token_id for token_id, token in enumerate(tokens[:used])}
    if len(ids) != used:
        raise ModelError("the vocabulary has a token twice", got=f"{used} ids, {len(ids)} tokens")
    return ids


def add_special_tokens(
    tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int], bos_id: int | None
) -> None:
    """Let a tokenizer recognize control and user-defined tokens in text, and begin a text with one.

    Args:
        tokenizer: Gets them.
        tokens: Text of every id.
        kinds: Kind of every id.
        bos_id: Id put before a text, or None if none is.
    """
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )
    if bos_id is not None:
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, bos_id)]
        )
