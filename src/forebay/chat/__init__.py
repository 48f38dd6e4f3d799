"""Chat: the only place that turns messages into tokens, and sampled tokens into training sequences."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from forebay.chat.messages import Message, Role

if TYPE_CHECKING:
    from forebay.chat.conversation import Conversation, SampledTokens, SequenceBuilder, supervised
    from forebay.chat.rendering import Chat
    from forebay.chat.small import small_chat, small_chat_files, small_tokenizer, write_small_chat
    from forebay.chat.template import ChatTemplate

__all__ = [
    "Chat",
    "ChatTemplate",
    "Conversation",
    "Message",
    "Role",
    "SampledTokens",
    "SequenceBuilder",
    "small_chat",
    "small_chat_files",
    "small_tokenizer",
    "supervised",
    "write_small_chat",
]

# Workers of environments need messages alone: tokenizers and templates come with what needs them.
_HOMES: Final = {
    "Chat": "rendering",
    "ChatTemplate": "template",
    "Conversation": "conversation",
    "SampledTokens": "conversation",
    "SequenceBuilder": "conversation",
    "small_chat": "small",
    "small_chat_files": "small",
    "small_tokenizer": "small",
    "supervised": "conversation",
    "write_small_chat": "small",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
