"""The typed records of vLLM's control routes, which exist with `VLLM_SERVER_DEV_MODE=1`; without JAX.

The shapes are those of vLLM 0.32 (`entrypoints/rl/online/api_router.py`, `entrypoints/serve/dev`).
"""

from __future__ import annotations

from typing import Any

import msgspec

PAUSE_PATH = "/pause?mode=keep"
RESUME_PATH = "/resume"
RPC_PATH = "/collective_rpc"
LABEL_PATH = "/update_weight_version"
RESET_CACHE_PATH = "/reset_prefix_cache?reset_running_requests=true"
SERVER_INFO_PATH = "/server_info?config_format=json"


LOAD_ADAPTERS_PATH = "/v1/load_lora_adapter"


class LabelBody(msgspec.Struct):
    """Body that labels the weights that a vLLM server has loaded."""

    new_version: str


class RpcBody(msgspec.Struct):
    """Body that calls a method of vLLM's workers."""

    method: str
    kwargs: dict[str, Any]


class VllmModelConfig(msgspec.Struct):
    """The part of vLLM's model configuration that matters here."""

    logprobs_mode: str
    hf_overrides: dict[str, Any] | None = None


class VllmLoadConfig(msgspec.Struct):
    """The part of vLLM's load configuration that matters here."""

    load_format: str


class VllmSchedulerConfig(msgspec.Struct):
    """The part of vLLM's scheduler configuration that matters here."""

    enable_chunked_prefill: bool = False


class AdapterBody(msgspec.Struct):
    """Body that has a vLLM server load adapters from a directory, under a name."""

    lora_name: str
    lora_path: str


class RpcResults(msgspec.Struct):
    """What a method of vLLM's workers returned, by worker; what is no list or object is text."""

    results: list[Any] = []


class VllmLoraConfig(msgspec.Struct):
    """The part of vLLM's configuration of adapters that matters here."""

    max_lora_rank: int


class VllmDeviceConfig(msgspec.Struct):
    """Where vLLM runs: `cuda`, `cpu` and so on."""

    device: str = ""


class VllmConfig(msgspec.Struct):
    """The parts of vLLM's configuration that matter here."""

    model_config: VllmModelConfig
    load_config: VllmLoadConfig
    scheduler_config: VllmSchedulerConfig
    device_config: VllmDeviceConfig
    lora_config: VllmLoraConfig | None = None


class ServerInfo(msgspec.Struct):
    """Body of vLLM's `/server_info`."""

    vllm_config: VllmConfig
