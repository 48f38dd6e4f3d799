"""A tokenizer of one character a token, for small models that are trained from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models

from forebay.chat.rendering import Chat
from forebay.chat.template import ChatTemplate

_SPECIAL: Final = ("<pad>", "<bos>", "<end>", "<unk>", "<system>", "<user>", "<assistant>", "<tool>")
_CHARACTERS: Final = "0123456789+-*/=#().,:;?!<>_' \nabcdefghijklmnopqrstuvwxyz"
_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def small_tokenizer() -> Tokenizer:
    """Make a character tokenizer: digits, operators, punctuation, lower-case letters and the chat tokens.

    `<pad>` is 0; characters outside the vocabulary become `<unk>`.

    Returns:
        A tokenizer of 64 tokens; the same at every call.

    Example:
        >>> small_tokenizer().encode("17+25=").tokens
        ['1', '7', '+', '2', '5', '=']
    """
    vocabulary = {token: token_id for token_id, token in enumerate((*_SPECIAL, *_CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    return tokenizer


def small_chat() -> Chat:
    """Make the chat of the small tokenizer.

    Example:
        >>> from forebay.chat import Message
        >>> small_chat().render([Message("user", "2+3")])
        '<bos><user>2+3<end><assistant>'
    """
    template = ChatTemplate(_TEMPLATE, {"bos_token": "<bos>", "eos_token": "<end>", "pad_token": "<pad>"})
    return Chat(small_tokenizer().to_str().encode(), template)


def small_chat_files() -> dict[str, bytes]:
    """Return the small tokenizer and its template as the files of a Hugging Face directory, by name.

    `Chat.from_files` makes of them a chat with the same fingerprint as `small_chat`.
    """
    config = {
        # By this class transformers takes tokenizer.json as it is, whatever the type of the model.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "chat_template": _TEMPLATE,
    }
    return {
        "tokenizer.json": small_tokenizer().to_str().encode(),
        "tokenizer_config.json": msgspec.json.format(msgspec.json.encode(config)),
    }


def write_small_chat(directory: Path) -> None:
    """Write the small tokenizer and its template as a Hugging Face tokenizer directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in small_chat_files().items():
        (directory / name).write_bytes(content)
