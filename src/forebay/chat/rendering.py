"""Messages to token ids and back: a tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from tokenizers import Tokenizer

from forebay.chat.messages import Message
from forebay.chat.template import ChatTemplate
from forebay.errors import ModelError

MAX_TOKENIZER_BYTES: Final = 1 << 28
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_PROBE: Final = "probe"
_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")

Tokens = npt.NDArray[np.int32]


class Chat:
    """A tokenizer with its chat template; immutable and free of conversation state.

    Args:
        tokenizer_json: Contents of a `tokenizer.json`.
        template: How messages become text.
        stop_tokens: Ids that end a turn, besides the one that the template writes.

    Attributes:
        fingerprint: xxh3 of `tokenizer_json`, hexadecimal; recorded in every trajectory.
        vocabulary: Ids are below this.
        closing: What the template writes to end an assistant's message; may be empty.
        stop_tokens: Ids at which sampling stops; the one in `closing` comes first.

    Raises:
        ModelError: The tokenizer does not load, or nothing can end an assistant's turn.
    """

    def __init__(
        self, tokenizer_json: bytes, template: ChatTemplate, *, stop_tokens: Sequence[int] = ()
    ) -> None:
        self._tokenizer = _load_tokenizer(tokenizer_json)
        self._template = template
        self.fingerprint = xxhash.xxh3_64_hexdigest(tokenizer_json)
        self.vocabulary: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        added = self._tokenizer.get_added_tokens_decoder().items()
        self._special = {token.content: token_id for token_id, token in added if token.special}
        self.closing = self._find_closing()
        in_closing = [
            token for token in self.encode(self.closing).tolist() if token in self._special.values()
        ]
        self.stop_tokens = tuple(dict.fromkeys([*in_closing[-1:], *stop_tokens]))
        if not self.stop_tokens:
            raise ModelError(
                "the chat template ends a message with no special token, and there is no eos_token",
                remedy="Add eos_token to tokenizer_config.json.",
            )

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Load from a model directory: `tokenizer.json`, and the template beside it.

        The template is `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`. The end
        tokens of `tokenizer_config.json` and `generation_config.json` stop sampling.

        Raises:
            ModelError: A file is missing, too large or malformed.
        """
        _refuse_missing(directory)
        return cls.from_files(
            {name: _read(directory / name) for name in TOKENIZER_FILES if (directory / name).is_file()},
            str(directory),
        )

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], where: str) -> Self:
        """Make a chat from the contents of the files that `load` reads.

        Args:
            files: Contents by name; `tokenizer.json` is one of them.
            where: What errors say they come from.

        Raises:
            ModelError: A file is malformed, or there is no chat template.
        """
        config = _parse(files, "tokenizer_config.json", where)
        variables = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name)))}
        template = ChatTemplate(_template_source(files, config, where), variables)
        eos = _parse(files, "generation_config.json", where).get("eos_token_id") or []
        stop_tokens = [int(token) for token in (eos if isinstance(eos, list) else [eos])]
        if "eos_token" in variables:
            token = _load_tokenizer(files["tokenizer.json"]).token_to_id(variables["eos_token"])
            stop_tokens += [] if token is None else [token]
        return cls(files["tokenizer.json"], template, stop_tokens=stop_tokens)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a whole conversation."""
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> Tokens:
        """Return [T] int32 ids of rendered text; special tokens in it are recognized."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, np.int32)

    def decode(self, tokens: Tokens) -> str:
        """Return the text of ids, special tokens spelled out."""
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        return text

    def is_closed(self, sampled: Tokens) -> bool:
        """Return whether sampled ids end with a stop token."""
        return len(sampled) > 0 and int(sampled[-1]) in self.stop_tokens

    def spoken(self, sampled: Tokens) -> str:
        """Return what sampled ids say, without the stop token."""
        return self.decode(sampled[:-1] if self.is_closed(sampled) else sampled)

    def continuation(
        self, prompt_text: str, history: Sequence[Message], new: Sequence[Message]
    ) -> tuple[str, Tokens | None]:
        """Return the text of the next prompt, and the ids to append to those sampled if it extends them.

        The template keeps history if it reproduces the sampled message letter for letter, or at least renders
        it the same way with and without the new messages (it may trim spaces). Then only the text after the
        message is tokenized; ids that exist are never made again. Otherwise the template rewrote history
        (stripped earlier thinking, say) and the prompt has to start over.

        Args:
            prompt_text: Text of the prompt that was sampled from.
            history: The conversation, ending with the sampled message.
            new: Messages since.

        Returns:
            The whole text, and [S] int32 ids of what follows the sampled message's end; None to start over.
        """
        text = self.render([*history, *new])
        verbatim = prompt_text + history[-1].content + self.closing
        if text.startswith(verbatim):
            return text, self._encode_after_closing(text[len(verbatim) :])
        before = self.render(history, add_generation_prompt=False)
        before = before[: before.rfind(self.closing) + len(self.closing)]
        if self.closing in before and text.startswith(before):
            return text, self._encode_after_closing(text[len(before) :])
        return text, None

    def _encode_after_closing(self, text: str) -> Tokens:
        """Tokenize text as it would be right after the end of a message."""
        closing = self.encode(self.closing)
        tokens = self.encode(self.closing + text)
        if np.array_equal(tokens[: len(closing)], closing):
            return tokens[len(closing) :]
        return self.encode(text)

    def _find_closing(self) -> str:
        """Return what the template writes after an assistant's message, up to its first special token."""
        text = self.render(
            [Message("user", "question"), Message("assistant", _PROBE)], add_generation_prompt=False
        )
        tail = text[text.rindex(_PROBE) + len(_PROBE) :] if _PROBE in text else ""
        ends = [tail.index(token) + len(token) for token in self._special if token in tail]
        return tail[: min(ends)] if ends else ""


def _load_tokenizer(tokenizer_json: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"tokenizer.json does not load: {error}") from error
    # Padding and truncation saved with a tokenizer would silently change prompts.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _refuse_missing(directory: Path) -> None:
    if not (directory / "tokenizer.json").is_file():
        raise ModelError(
            f"no tokenizer.json in {directory}",
            remedy="Point model.path at a directory that has one, or model.tokenizer.",
        )


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelError(f"{path} is too large", got=path.stat().st_size, limit=MAX_TOKENIZER_BYTES)
    return path.read_bytes()


def _parse(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(files.get(name) or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ModelError(f"{name} of {where} is not a JSON object: {error}") from error


def _template_source(files: Mapping[str, bytes], config: dict[str, Any], where: str) -> str:
    source = files.get("chat_template.jinja", b"").decode() or config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        raise ModelError(
            f"no chat template in {where}",
            remedy="Add chat_template.jinja; base models have none.",
        )
    return source


def _token_text(value: object) -> str | None:
    """Return the text of a special token, which is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
