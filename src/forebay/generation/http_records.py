"""The typed records of the wire: vLLM's `/inference/v1/generate` and the routes around it; without JAX.

The shape is that of vLLM 0.32 (`entrypoints/scale_out/token_in_token_out/protocol.py`), so that one client
serves both generators. What vLLM has no word for travels in one extra object, `forebay`, which vLLM ignores
in a request and does not send in a response.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from forebay.generation.protocol import CompletionFinish, GeneratorInfo
from forebay.trajectory import PolicyVersion

GENERATE_PATH = "/inference/v1/generate"
ABORT_PATH = "/inference/v1/abort_requests"
RELEASE_PATH = "/inference/v1/release_episodes"
MODELS_PATH = "/v1/models"
HEALTH_PATH = "/health"
METRICS_PATH = "/metrics"
WEIGHT_PATH = "/weight_info"

MAX_ID_LENGTH = 256
# vLLM prefixes the ids of this route; an abort has to name them so.
VLLM_ID_PREFIX = "generate-tokens-"
MAX_SEED = (1 << 63) - 1

Name = Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)]


class RequestExtension(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What vLLM's request has no field for; see `GenerationRequest`."""

    episode_id: Name = ""
    min_version: PolicyVersion = PolicyVersion(0, 0)
    max_kv_staleness: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    keep: bool = False


class GenerateBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of a request; fields that vLLM has and we do not read are ignored."""

    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
    token_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    sampling_params: dict[str, Any]
    model: str | None = None
    stream: bool | None = False
    output_mode: str = "tokens"
    features: Any = None
    content_parts: Any = None
    forebay: RequestExtension | None = None


class SamplingParams(msgspec.Struct, kw_only=True):
    """The sampling parameters that the engine has."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None


class TokenLogprob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sampled token at one position."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[Any] = []


class Logprobs(msgspec.Struct, omit_defaults=True):
    """One entry per sampled token."""

    content: list[TokenLogprob] | None = None


class WeightVersionSpan(msgspec.Struct):
    """Output tokens `[start, end)` were sampled by weights labelled `version`."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The one completion of a response."""

    index: int
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    weight_versions: list[WeightVersionSpan] | None = None


class ResponseExtension(msgspec.Struct, kw_only=True):
    """What vLLM's response has no field for; `kv_versions` has one label per weight version span."""

    finish: CompletionFinish
    kv_versions: list[str]
    wait_s: float = 0.0
    generate_s: float = 0.0
    num_prefilled: int = 0
    num_cached: int = 0
    queue_s: float = 0.0


class GenerateResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of a response."""

    request_id: str
    choices: list[Choice]
    output_mode: str = "tokens"
    forebay: ResponseExtension | None = None


class AbortBody(msgspec.Struct):
    """Body of an abort."""

    request_ids: list[str]


def abort_of(request_id: str) -> AbortBody:
    """Return the body that ends one request on either generator."""
    return AbortBody([request_id, VLLM_ID_PREFIX + request_id])


class ReleaseBody(msgspec.Struct):
    """Body of a release."""

    episode_ids: list[str]


class WeightInfo(msgspec.Struct):
    """Body of `/weight_info`: the label of the weights that are served."""

    weight_version: str


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of `/v1/models`; `forebay` is absent from vLLM's, `root`, a model directory, from ours."""

    id: str
    root: str | None = None
    object: str = "model"
    owned_by: str = "forebay"
    max_model_len: int | None = None
    forebay: GeneratorInfo | None = None


class ModelList(msgspec.Struct):
    """Body of `/v1/models`."""

    data: list[ModelCard]
    object: str = "list"
