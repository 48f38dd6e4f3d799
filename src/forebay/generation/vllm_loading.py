"""How a published version gets into a vLLM server: whole weights, or adapters beside a model; without JAX.

vLLM can replace adapters in place. It must not be asked to: every request then keeps the path that it began
with and reads it anew in each step, so that one that runs on brings its old adapters back (vLLM 0.32,
`lora/worker_manager.py`). Here adapters have one path for all versions, whose file changes while nothing is
sampled. vLLM is told to forget what it read, and the next step reads it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import xxhash

from forebay.generation.http_wire import adapter_name
from forebay.generation.untied import untied_base, untied_view
from forebay.generation.vllm_server import VllmServer
from forebay.models.lora_layout import adapter_entry
from forebay.models.settings import LoraSettings
from forebay.telemetry.files import write_atomically
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors, decode, encode

_CONFIG_FILE: Final = "adapter_config.json"
_TENSOR_FILE: Final = "adapter_model.safetensors"


class Loading(Protocol):
    """How the files of a version get into a server."""

    def open(self, version: PolicyVersion, *, is_untied: bool) -> AbstractContextManager[Path]:
        """Verify a version and keep its files; yield their directory.

        Args:
            version: Which one.
            is_untied: Whether the server has an output head of its own although the model's is the embedding.

        Raises:
            WeightsError: It is gone or torn, or published otherwise.
        """

    async def load(self, server: VllmServer, directory: Path, *, is_fresh: bool) -> None:
        """Put the files into a server that samples nothing.

        Args:
            server: Which one.
            directory: From `open`.
            is_fresh: Whether the server may hold anything: nobody knows what was loaded before.

        Raises:
            GenerationError: The server failed.
            WeightsError: The model that adapters belong to is missing or torn.
        """


class WholeWeights:
    """Versions of whole weights: all of them are loaded every time.

    Args:
        reader: Where they are published.
    """

    def __init__(self, reader: WeightReader) -> None:
        self._reader = reader

    def open(self, version: PolicyVersion, *, is_untied: bool) -> AbstractContextManager[Path]:
        """Verify a version and keep its files."""
        return untied_view(self._reader, version) if is_untied else self._reader.hold(version)

    async def load(self, server: VllmServer, directory: Path, *, is_fresh: bool) -> None:
        """Load the files in place of the weights."""
        await server.load(directory)


class SeparateAdapters:
    """Versions of adapters: the model is loaded once, and then only what is beside it.

    Args:
        reader: Where they are published.
        lora: Which adapters they are.
        name: What requests call the model with its adapters.
        address: Of the server: each has a path of its own, because they change versions one by one.
    """

    def __init__(self, reader: WeightReader, lora: LoraSettings, name: str, address: str) -> None:
        self._reader, self._lora, self._name = reader, lora, name
        self._path = reader.path / f"vllm-{xxhash.xxh3_64_hexdigest(address.encode())}"
        self._is_untied = False

    @contextmanager
    def open(self, version: PolicyVersion, *, is_untied: bool) -> Iterator[Path]:
        """Verify a version and keep its files."""
        self._is_untied = is_untied
        with self._reader.hold(version, adapters=True) as directory:
            yield directory

    async def load(self, server: VllmServer, directory: Path, *, is_fresh: bool) -> None:
        """Load the model if that is in doubt; put the adapters where the server reads them."""
        if is_fresh:
            await self._load_base(server)
        await asyncio.to_thread(self._place, directory)
        await server.use_adapters(self._name, self._path)

    async def _load_base(self, server: VllmServer) -> None:
        with ExitStack() as kept:
            if self._is_untied:
                base = await asyncio.to_thread(kept.enter_context, untied_base(self._reader))
            else:
                base, _ = await asyncio.to_thread(self._reader.base)
            await server.load(base)

    def _place(self, directory: Path) -> None:
        """Write the adapters of a version to the server's path, as PEFT does: one file."""
        tensors: Tensors = {}
        for shard in directory.glob("*.safetensors"):
            tensors |= decode(np.fromfile(shard, np.uint8), str(shard))
        write_atomically(self._path / _TENSOR_FILE, b"".join(encode(tensors)))
        entry = adapter_entry(self._lora, base=None)
        write_atomically(self._path / _CONFIG_FILE, json.dumps(entry).encode())


def loading_of(reader: WeightReader, lora: LoraSettings | None, run_id: str, address: str) -> Loading:
    """Return how the versions of a run get into a server.

    Args:
        reader: Where they are published.
        lora: The adapters that they are of; None: they are of whole weights.
        run_id: Of the run.
        address: Of the server.
    """
    if lora is None:
        return WholeWeights(reader)
    return SeparateAdapters(reader, lora, adapter_name(run_id), address)
