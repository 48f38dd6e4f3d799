"""GGUF tokenizers: vocabulary, merges and chat template as the files of a Hugging Face directory."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from forebay.chat.bpe import SPLITS, BpeVocabulary, bpe_tokenizer
from forebay.chat.kinds import NAME_ANOTHER
from forebay.chat.spm import SpmVocabulary, spm_tokenizer
from forebay.errors import ModelError
from forebay.models.gguf_file import GgufFile

_PREFIX: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"
# Names in `tokenizer_config.json`, and the keys of their ids.
_SPECIAL: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# What llama.cpp takes where a SentencePiece vocabulary does not say.
_SPM_DEFAULTS: Final = {"bos_token": 1, "eos_token": 2, "unk_token": 0}


def tokenizer_files(file: GgufFile) -> dict[str, bytes]:
    """Return the tokenizer of a model as the files that transformers, vLLM and `Chat` load.

    Args:
        file: The header of the model's file.

    Returns:
        Contents of `tokenizer.json`, `tokenizer_config.json` (with the chat template) and
        `generation_config.json` (with the ids that end a turn), by name.

    Raises:
        ModelError: The tokenizer is of another kind, is incomplete or contradicts itself, or there is no chat
            template; the message names the key.
    """
    kind = file.metadata.get(f"{_PREFIX}model")
    if not isinstance(kind, str) or kind not in _MAKERS:
        raise ModelError(
            f"unsupported {_PREFIX}model in {file.path}",
            got=repr(kind),
            limit=", ".join(map(repr, _MAKERS)),
            remedy=NAME_ANOTHER,
        )
    tokens = _strings(file, "tokens")
    ids = {name: _token_id(file, key, len(tokens)) for name, key in _SPECIAL.items()}
    if kind == "llama":
        ids = {name: _SPM_DEFAULTS.get(name) if value is None else value for name, value in ids.items()}
    tokenizer = _MAKERS[kind](file, tokens, ids)
    ends = [ids["eos_token"], _token_id(file, "eot_token_id", len(tokens))]
    config: dict[str, Any] = {
        # By this class transformers takes tokenizer.json as it is, whatever the type of the model.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length"),
        **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
        "chat_template": _chat_template(file),
    }
    generation = {
        "bos_token_id": ids["bos_token"],
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
        "pad_token_id": ids["pad_token"],
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": _json(config),
        "generation_config.json": _json(generation),
    }


def _bpe(file: GgufFile, tokens: list[str], ids: dict[str, int | None]) -> Tokenizer:
    split = str(file.metadata.get(f"{_PREFIX}pre", ""))
    begins = split in SPLITS and SPLITS[split].begins
    return bpe_tokenizer(
        BpeVocabulary(
            tokens=tokens,
            kinds=_kinds(file, tokens),
            merges=_strings(file, "merges"),
            split=split,
            bos_id=ids["bos_token"] if file.metadata.get(f"{_PREFIX}add_bos_token", begins) else None,
        )
    )


def _spm(file: GgufFile, tokens: list[str], ids: dict[str, int | None]) -> Tokenizer:
    scores = file.metadata.get(f"{_PREFIX}scores")
    if not isinstance(scores, list) or not all(isinstance(score, float) for score in scores):
        raise ModelError(f"{file.path} has no list of numbers {_PREFIX}scores", remedy=NAME_ANOTHER)
    return spm_tokenizer(
        SpmVocabulary(
            tokens=tokens,
            kinds=_kinds(file, tokens),
            scores=scores,
            unknown_id=ids["unk_token"] or 0,
            space_prefix=bool(file.metadata.get(f"{_PREFIX}add_space_prefix", True)),
            bos_id=ids["bos_token"] if file.metadata.get(f"{_PREFIX}add_bos_token", True) else None,
        )
    )


def _kinds(file: GgufFile, tokens: list[str]) -> list[int]:
    kinds: list[int] = file.metadata.get(f"{_PREFIX}token_type", [1] * len(tokens))
    return kinds


_MAKERS: Final = {"gpt2": _bpe, "llama": _spm}


def _strings(file: GgufFile, name: str) -> list[str]:
    value = file.metadata.get(_PREFIX + name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelError(f"{file.path} has no list of texts {_PREFIX}{name}", remedy=NAME_ANOTHER)
    return value


def _token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    value = file.metadata.get(_PREFIX + name)
    if value is not None and (not isinstance(value, int) or value >= num_tokens):
        raise ModelError(
            f"{_PREFIX}{name} of {file.path} is no id of its vocabulary", got=value, limit=num_tokens
        )
    return value


def _chat_template(file: GgufFile) -> str:
    template = file.metadata.get(_TEMPLATE)
    if not isinstance(template, str):
        raise ModelError(
            f"{file.path} has no {_TEMPLATE}",
            remedy="Use an instruction-tuned model; base models have none.",
        )
    return template


def _json(entry: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({k: v for k, v in entry.items() if v is not None}))
