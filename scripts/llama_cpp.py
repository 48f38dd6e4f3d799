"""Asks llama.cpp, by the package xllamacpp, how it cuts texts; for the scripts that make golden values."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

# Room for a sequence; texts are only cut here, so any number does.
_CONTEXT = 256


def token_ids(gguf: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids that the tokenizer of a GGUF file gives to texts, special tokens in them included.

    Args:
        gguf: The file; a whole model, since llama.cpp loads it.
        texts: What is cut.
    """
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_ctx = _CONTEXT
    parameters.n_parallel = 1
    server = xllamacpp.Server(parameters)
    return [_ask(server.listening_address, text) for text in texts]


def _ask(address: str, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    request = urllib.request.Request(f"{address}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["tokens"]
