"""The verbs of vLLM's control routes, and what a server must be started with; no JAX is imported here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forebay.errors import ConfigError, GenerationError, ModelError
from forebay.generation import http_records as records
from forebay.generation import vllm_records as control
from forebay.generation.http_connection import Connection, NotFoundError
from forebay.generation.protocol import BadRequestError
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.models.config import ModelConfig, load_config
from forebay.models.settings import LoraSettings

HOW_TO_START = (
    "Start it with: VLLM_SERVER_DEV_MODE=1 vllm serve RUN/model --load-format dummy --enable-scale-out "
    "--logprobs-mode processed_logprobs"
)
MAX_TEMPERATURE = 2.0
# The values that vLLM takes for --max-lora-rank.
_MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_LOADABLE = ("auto", "safetensors")
# What of a model may differ between its directory and the server's.
_MAY_DIFFER = ("torch_dtype", "bos_token_id", "eos_token_id", "max_position_embeddings", "num_real_tokens")
T = TypeVar("T")


class VllmServer:
    """Control of one server; every verb has a deadline.

    Args:
        address: Base address.
        settings: The deadlines.
        token: Bearer token, as in vLLM's `--api-key`.
    """

    def __init__(self, address: str, settings: GeneratorSettings, token: str | None = None) -> None:
        self.address = address
        self._settings = settings
        # vLLM closes a connection after an error; a resume sent into that would be lost.
        self._connection = Connection(address, ClientSettings(), token, reuse=False)

    async def pause(self) -> None:
        """Stop sampling after the running step; requests are kept, new ones wait."""
        await self._post(control.PAUSE_PATH)

    async def resume(self) -> None:
        """Go on sampling."""
        await self._post(control.RESUME_PATH)

    async def load(self, directory: Path) -> None:
        """Load the safetensors files of a directory in place of the weights."""
        await self._rpc("reload_weights", {"weights_path": str(directory)})

    async def use_adapters(self, name: str, directory: Path) -> None:
        """Have requests for `name` read the adapters in a directory, those that run included.

        Args:
            name: What requests call them; the server knows it for this directory or not at all.
            directory: Where they are; what was read of it before is forgotten.

        Raises:
            GenerationError: The server failed, keeps what it was to forget, or takes `name` from elsewhere.
        """
        known = {card.id: card.root for card in await self._cards()}
        _refuse_another_place(known.get(name), name, self.address, directory)
        for adapter in await self._loaded_adapters():
            await self._rpc("remove_lora", {"lora_id": adapter})
        if left := await self._loaded_adapters():
            raise GenerationError(f"vLLM at {self.address} keeps adapters that it was to forget", got=left)
        if name not in known:
            body = control.AdapterBody(lora_name=name, lora_path=str(directory))
            await self._post(control.LOAD_ADAPTERS_PATH, body, self._settings.vllm_load_timeout_s)

    async def _loaded_adapters(self) -> list[int]:
        """Return the ids of the adapters that any worker holds; vLLM writes each set as text."""
        said = await self._rpc("list_loras", {})
        return sorted({int(number) for text in said.results for number in re.findall(r"\d+", str(text))})

    async def reset_cache(self) -> None:
        """Drop the KV cache; running requests are computed again."""
        await self._post(control.RESET_CACHE_PATH)

    async def label(self) -> str:
        """Return the label of the weights."""
        return (await self._get(records.WEIGHT_PATH, records.WeightInfo)).weight_version

    async def set_label(self, label: str) -> None:
        """Label the weights; tokens sampled from now on carry it."""
        await self._post(control.LABEL_PATH, control.LabelBody(label))

    async def check(self, model: ModelConfig | None, lora: LoraSettings | None = None) -> bool:
        """Check that it was started with what forebay needs, and have it read safetensors.

        Args:
            model: What it must serve; compared where its model directory can be read from here.
            lora: The adapters that it must take beside the model; None: none.

        Returns:
            Whether it has an output head of its own although the model's is the embedding.

        Raises:
            ConfigError: It was not; the message says how.
            GenerationError: It cannot be reached.
        """
        card = await self._card()
        _refuse_shorter(card.max_model_len, self._settings.context, self.address)
        config = await self._check_routes()
        if lora is not None:
            await self._check_adapters(config, lora.rank or 0)
        if model is not None and card.root:
            self._check_model(Path(card.root), model)
        return model is not None and model.tie_word_embeddings and self._is_untied(config)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _cards(self) -> list[records.ModelCard]:
        return (await self._get(records.MODELS_PATH, records.ModelList)).data

    async def _card(self) -> records.ModelCard:
        cards = await self._cards()
        if not cards or cards[0].forebay is not None:
            raise ConfigError(
                f"{self.address} is no vLLM server",
                got="a forebay generator" if cards else "a server without a model",
                remedy="Leave generator.vllm empty to use forebay's own.",
            )
        return cards[0]

    async def _check_routes(self) -> control.VllmConfig:
        try:
            await self.label()
            info = (await self._get(control.SERVER_INFO_PATH, control.ServerInfo)).vllm_config
        except NotFoundError:
            raise self._wrong("has no control routes", "VLLM_SERVER_DEV_MODE=1 in its environment") from None
        try:
            await self._connection.request("POST", records.GENERATE_PATH, b"{}")
        except NotFoundError:
            raise self._wrong("has no token-in, token-out route", "--enable-scale-out") from None
        except BadRequestError:
            pass  # it is there, and refuses an empty request
        mode = info.model_config.logprobs_mode
        if mode != "processed_logprobs":
            raise self._wrong(
                f"reports {mode}, not those of the sampled distribution", "--logprobs-mode processed_logprobs"
            )
        if info.device_config.device == "cpu" and info.scheduler_config.enable_chunked_prefill:
            # Its CPU build takes back the random numbers of a half-computed prompt, which ends the process.
            raise self._wrong(
                "dies on its CPU when a prompt with a seed is computed in parts",
                "--no-enable-chunked-prefill",
            )
        if info.load_config.load_format not in _LOADABLE:
            await self._rpc("update_config", {"overrides": {"load_config": {"load_format": "safetensors"}}})
        return info

    async def _check_adapters(self, config: control.VllmConfig, rank: int) -> None:
        if config.lora_config is None or config.lora_config.max_lora_rank < rank:
            enough = next((size for size in _MAX_RANKS if size >= rank), rank)
            raise self._wrong(f"takes no adapters of rank {rank}", f"--enable-lora --max-lora-rank {enough}")
        try:
            await self._connection.request("POST", control.LOAD_ADAPTERS_PATH, b"{}")
        except NotFoundError:
            variable = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
            raise self._wrong("has no route to load adapters", variable) from None
        except BadRequestError:
            pass  # it is there, and refuses an empty request

    def _is_untied(self, config: control.VllmConfig) -> bool:
        """Return whether a tied model is served untied; on the CPU it must be.

        There, vLLM repacks the output head when it is started. A reload reaches the embedding alone: the head
        keeps the first weights, and vLLM says so in a line of its log and goes on sampling.
        """
        if (config.model_config.hf_overrides or {}).get("tie_word_embeddings") is False:
            return True
        if config.device_config.device == "cpu":
            raise self._wrong(
                "would keep the first output head of a model whose head is its embedding",
                "--hf-overrides '{\"tie_word_embeddings\": false}'",
            )
        return False

    def _wrong(self, what: str, option: str) -> ConfigError:
        return ConfigError(f"vLLM at {self.address} {what}", remedy=f"Start it with {option}.")

    def _check_model(self, root: Path, model: ModelConfig) -> None:
        try:
            theirs = load_config(root).to_hf()
        except (ModelError, OSError):
            return  # a name of a hub, or a directory of another machine
        ours = model.to_hf()
        differing = [name for name in ours if ours[name] != theirs.get(name) and name not in _MAY_DIFFER]
        if differing:
            name = differing[0]
            raise ConfigError(
                f"vLLM at {self.address} serves another model: {name} differs",
                got=theirs.get(name),
                limit=ours[name],
                remedy="Serve the run's model: vllm serve RUN/model --load-format dummy.",
            )

    async def _get(self, path: str, kind: type[T]) -> T:
        data = await self._connection.request("GET", path, timeout_s=self._settings.vllm_timeout_s)
        return self._decoded(path, data, kind)

    async def _rpc(self, method: str, arguments: dict[str, Any]) -> control.RpcResults:
        """Call a method of the workers; any of them may load files."""
        body, limit_s = control.RpcBody(method, arguments), self._settings.vllm_load_timeout_s
        data = await self._post(control.RPC_PATH, body, limit_s) or b"{}"
        return self._decoded(control.RPC_PATH, data, control.RpcResults)

    async def _post(self, path: str, message: Any = None, timeout_s: float | None = None) -> bytes:
        body = msgspec.json.encode(message) if message is not None else b""
        return await self._connection.request("POST", path, body, timeout_s or self._settings.vllm_timeout_s)

    def _decoded(self, path: str, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise GenerationError(f"vLLM at {self.address} answered {path} otherwise: {error}") from error


async def check_vllm(
    settings: GeneratorSettings,
    *,
    token: str | None,
    model: ModelConfig | None = None,
    lora: LoraSettings | None = None,
) -> None:
    """Check every server that a configuration names.

    Args:
        settings: Names them.
        token: Bearer token, as in vLLM's `--api-key`.
        model: What they must serve.
        lora: The adapters that they must take beside it; None: none.

    Raises:
        ConfigError: One cannot be reached, or was not started with what forebay needs.
    """
    for address in settings.vllm:
        server = VllmServer(address, settings, token)
        try:
            await server.check(model, lora)
        except GenerationError as error:
            raise ConfigError(f"no vLLM server at {address}: {error}", remedy=HOW_TO_START) from error
        finally:
            await server.close()


def _refuse_another_place(root: str | None, name: str, address: str, directory: Path) -> None:
    if root is not None and Path(root).resolve() != directory.resolve():
        raise GenerationError(
            f"vLLM at {address} takes {name} from another directory",
            got=root,
            limit=directory,
            remedy="Restart it.",
        )


def _refuse_shorter(length: int | None, context: int, address: str) -> None:
    if length and length < context:
        raise ConfigError(
            f"vLLM at {address} takes fewer tokens than generator.context",
            got=f"--max-model-len {length}",
            limit=f">= {context}",
            remedy="Start it with a longer one, or lower generator.context.",
        )
