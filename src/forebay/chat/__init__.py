"""Chat: the only place that turns messages into tokens, and sampled tokens into training sequences."""

from forebay.chat.conversation import Conversation, SampledTokens, SequenceBuilder, supervised
from forebay.chat.rendering import Chat
from forebay.chat.small import small_chat, small_chat_files, small_tokenizer, write_small_chat
from forebay.chat.template import ChatTemplate, Message, Role

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
