"""What is said: the messages of a conversation."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: str
