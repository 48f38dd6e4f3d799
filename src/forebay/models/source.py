"""Where a model comes from, a Hugging Face directory or a GGUF file: its shape and tokenizer, no weights."""

from __future__ import annotations

from pathlib import Path

from forebay.chat import Chat
from forebay.chat.rendering import TOKENIZER_FILES
from forebay.models.config import ModelConfig, load_config
from forebay.models.gguf import gguf_config
from forebay.models.gguf_chat import tokenizer_files
from forebay.models.gguf_file import is_gguf, read_gguf


def source_config(path: Path, num_real_tokens: int | None = None) -> ModelConfig:
    """Return the shape of a model.

    Args:
        path: A Hugging Face directory, or a GGUF file.
        num_real_tokens: Size of the tokenizer's vocabulary, where it is smaller than the model's.

    Raises:
        ModelError: Something is missing, damaged or not supported; the message names it.
    """
    if is_gguf(path):
        return gguf_config(read_gguf(path), num_real_tokens)
    return load_config(path, num_real_tokens)


def source_chat(path: Path) -> Chat:
    """Return the tokenizer and chat template of a Hugging Face directory or GGUF file.

    Raises:
        ModelError: Something is missing, damaged or not supported; the message names it.
    """
    if is_gguf(path):
        return Chat.from_files(tokenizer_files(read_gguf(path)), str(path))
    return Chat.load(path)


def source_tokenizer_files(path: Path) -> dict[str, bytes]:
    """Return the files by which others load the tokenizer of a Hugging Face directory or GGUF file, by name.

    Raises:
        ModelError: The tokenizer of a GGUF file is not supported.
    """
    if is_gguf(path):
        return tokenizer_files(read_gguf(path))
    return {name: (path / name).read_bytes() for name in TOKENIZER_FILES if (path / name).is_file()}
