from __future__ import annotations

from typing import Any

import pytest

from forebay.chat.spm import SpmVocabulary, spm_tokenizer
from forebay.errors import ModelError

SPACE = "\u2581"
BYTES = [f"<0x{value:02X}>" for value in range(256)]
WORDS = [f"{SPACE}a", "ab", f"{SPACE}ab", "bc", SPACE, "a", "b", "c"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *WORDS, "<tool>"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * len(WORDS), 4]
# As trained: what was merged first scores highest.
SCORES = [0.0] * 259 + [-float(number) for number in range(len(WORDS))] + [0.0]


def vocabulary(**changes: Any) -> SpmVocabulary:
    return SpmVocabulary(TOKENS, KINDS, SCORES, unknown_id=0)._replace(**changes)


def pieces(text: str, **changes: Any) -> list[str]:
    return spm_tokenizer(vocabulary(**changes)).encode(text, add_special_tokens=False).tokens


def test_the_highest_score_is_merged_first() -> None:
    assert pieces("ab") == [f"{SPACE}ab"]
    assert pieces("abc") == [f"{SPACE}ab", "c"]
    # Of "bc" and "ab", what scores higher.
    assert pieces("xabc") == [SPACE, "<0x78>", "ab", "c"]
    swapped = list(SCORES)
    swapped[TOKENS.index("ab")], swapped[TOKENS.index("bc")] = -3.0, -1.0
    assert pieces("xabc", scores=swapped) == [SPACE, "<0x78>", "a", "bc"]


def test_what_no_token_has_is_spelled_in_bytes_and_read_back() -> None:
    assert pieces("ä", space_prefix=False) == ["<0xC3>", "<0xA4>"]
    tokenizer = spm_tokenizer(vocabulary())
    ids = tokenizer.encode("ab ä a", add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "ab ä a"


def test_a_text_begins_anew_after_a_special_token_and_with_bos_for_others() -> None:
    assert pieces("a</s>a<tool>b") == [f"{SPACE}a", "</s>", f"{SPACE}a", "<tool>", SPACE, "b"]
    assert pieces("a</s>a", space_prefix=False) == ["a", "</s>", "a"]
    assert spm_tokenizer(vocabulary(bos_id=1)).encode("a").tokens == ["<s>", f"{SPACE}a"]


def test_control_tokens_are_never_merged_from_text() -> None:
    made = {"tokens": [*TOKENS, "<", "s>"], "kinds": [*KINDS, 1, 1], "scores": [*SCORES, -20.0, -21.0]}
    assert "<s>" not in pieces("< s>", **made)
    assert pieces("<s>", **made) == ["<s>"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scores": [0.0]}, r"a token needs one score \(got 1, limit 268\)"),
        ({"kinds": [1]}, r"a token needs one kind \(got 1, limit 268\)"),
        ({"kinds": [1] * len(TOKENS)}, r"a token of every byte \(got 0, limit 256\). Name the directory"),
        ({"tokens": ["a"] * len(TOKENS)}, "a token twice"),
    ],
)
def test_what_is_wrong_with_a_vocabulary_is_said(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        spm_tokenizer(vocabulary(**changes))
