"""Settings of a generator and of those who call one; no JAX is imported here."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

KvAcrossVersions = Literal["bounded", "recompute"]
_SMALLEST_WINDOW_TOKENS = 128


class GeneratorSettings(BaseModel):
    """One generator: where it listens, how many sequences it decodes at once, and what it keeps cached.

    With `vllm`, servers that are already running generate; of the rest, `context`, `token_env`,
    `kv_across_versions`, `poll_weights_s` and `first_weights_timeout_s` still apply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on; any but loopback needs token_env.")
    port: int = Field(8100, ge=0, le=65535, description="Port to listen on; 0 lets the system choose.")
    token_env: str | None = Field(None, description="Environment variable that holds the bearer token.")

    vllm: tuple[str, ...] = Field(
        (),
        description="Addresses of running vLLM servers that generate instead of the built-in engine, "
        "e.g. http://127.0.0.1:8000.",
    )
    vllm_timeout_s: float = Field(30.0, gt=0, description="Longest wait for vLLM to pause, label or resume.")
    vllm_load_timeout_s: float = Field(
        300.0, gt=0, description="Longest wait for vLLM to load a version of the weights."
    )
    vllm_patience_s: float = Field(
        60.0, ge=0, description="A vLLM server whose updates fail for this long ends the process."
    )

    slots: int = Field(32, ge=1, le=4096, description="Sequences decoded at once.")
    context: int = Field(512, ge=8, description="Most tokens of prompt and completion together.")
    decode_block: int = Field(
        4, ge=1, le=256, description="Tokens decoded per slot between two looks at the queue."
    )
    prefill_chunks: tuple[int, ...] = Field(
        (16, 64, 256), min_length=1, description="Static lengths of prefill programs, tokens, ascending."
    )
    prefill_rows: int = Field(4, ge=1, le=64, description="Prompts that one prefill program takes at once.")
    prefill_budget_tokens: int = Field(
        1024, ge=1, description="Prompt tokens computed between two decode blocks before decoding goes on."
    )
    kv_windows: tuple[int, ...] = Field(
        (),
        description="Static numbers of cached tokens that attention reads; empty: 128, 256, ... context.",
    )
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of weights, activations and KV cache; logits are float32 in any case."
    )

    parked_episodes: int = Field(
        256,
        ge=0,
        description="Episodes whose KV cache is kept while their environment acts; the oldest goes first.",
    )
    shared_prefixes: int = Field(8, ge=0, description="Prompts whose KV cache other episodes may reuse.")
    shared_prefix_min_tokens: int = Field(16, ge=1, description="Shorter common prefixes are computed again.")
    kv_across_versions: KvAcrossVersions = Field(
        "bounded",
        description="bounded keeps a cache up to max_kv_staleness versions, recompute none.",
    )
    max_kv_staleness: int = Field(
        8,
        ge=0,
        description="Oldest KV cache in use, in versions, for requests that name no bound of their own.",
    )

    max_queue: int = Field(1024, ge=1, description="Requests that may wait for a slot; more are refused.")
    max_stop_tokens: int = Field(8, ge=1, le=64, description="Stop tokens per request.")
    request_timeout_s: float = Field(600.0, gt=0, description="Deadline of requests that name none.")
    max_body_bytes: int = Field(8 << 20, ge=1024, description="Largest request body.")
    poll_weights_s: float = Field(0.05, gt=0, description="Time between two looks for new weights.")
    first_weights_timeout_s: float = Field(600.0, gt=0, description="How long to wait for the first weights.")
    stall_timeout_s: float = Field(
        120.0, gt=0, description="Longest device call before health reports a stall."
    )
    drain_timeout_s: float = Field(10.0, ge=0, description="Time that running requests get at shutdown.")

    @field_validator("vllm", mode="before")
    @classmethod
    def _one_address_is_a_list(cls, value: object) -> object:
        if isinstance(value, str):
            return (value,)
        # A strict tuple is no list, and by now the array of a file is one.
        return tuple(value) if isinstance(value, list) else value

    @field_validator("vllm")
    @classmethod
    def _addresses_are_bases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
                raise ValueError(
                    f"generator.vllm wants base addresses like http://127.0.0.1:8000, got {address!r}"
                )
        return tuple(address.rstrip("/") for address in value)

    @model_validator(mode="after")
    def _shapes_are_possible(self) -> Self:
        for name in ("prefill_chunks", "kv_windows"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)) or any(value < 1 for value in values):
                raise ValueError(f"{name} must be positive and ascending, got {list(values)}")
        if self.kv_windows and self.kv_windows[-1] < self.context:
            raise ValueError(
                f"kv_windows ends at {self.kv_windows[-1]} < context = {self.context}: a full sequence could "
                f"not be decoded. Add {self.context} to kv_windows, or leave it empty."
            )
        return self

    @property
    def chunks(self) -> tuple[int, ...]:
        """Prefill lengths that fit the context, at least one."""
        return tuple(chunk for chunk in self.prefill_chunks if chunk < self.context) or (self.context,)

    @property
    def decode_rows(self) -> tuple[int, ...]:
        """Numbers of leading slots that a decode block may run over, ascending: a quarter, and all."""
        return tuple(sorted({max(self.slots // part, 1) for part in (4, 1)}))

    @property
    def windows(self) -> tuple[int, ...]:
        """Cached tokens that decoding reads, ascending; the last one is the context."""
        if self.kv_windows:
            return (*(w for w in self.kv_windows if w < self.context), self.context)
        windows: list[int] = []
        window = _SMALLEST_WINDOW_TOKENS
        while window < self.context:
            windows.append(window)
            window *= 2
        return (*windows, self.context)


class ClientSettings(BaseModel):
    """How to call generators over HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_env: str | None = Field(None, description="Environment variable that holds the bearer token.")
    connect_timeout_s: float = Field(2.0, gt=0, description="Time to open a connection.")
    retry_s: float = Field(
        4.0, ge=0, description="How long a generator that cannot be reached is tried again."
    )
    heartbeat_s: float = Field(
        1.0, gt=0, description="Time between two health checks while requests are running."
    )
    unresponsive_s: float = Field(
        4.0, gt=0, description="A generator that has not answered for this long has its requests failed."
    )
    busy_retry_s: float = Field(
        300.0, ge=0, description="How long a generator that is loading or whose queue is full is tried again."
    )
    request_timeout_s: float = Field(
        900.0,
        gt=0,
        description="Longest wait for one completion; the last resort behind the deadlines of requests.",
    )
    max_backoff_s: float = Field(1.0, gt=0, description="Longest pause between two tries.")
    avoid_s: float = Field(5.0, ge=0, description="How long a generator that failed gets no new episodes.")
    run_id: str = Field(
        "", description="The run whose weights vLLM must serve; empty for any. Our engine serves one run."
    )
    adapters: bool = Field(
        False, description="Whether vLLM has adapters of the run beside its model, which answer requests."
    )
    vocabulary: int = Field(
        0, ge=0, description="Ids that vLLM may sample, which it does not tell itself; 0: unknown."
    )
    padded_vocabulary: int = Field(
        0, ge=0, description="Ids that vLLM has logits for; those beyond vocabulary are masked."
    )
