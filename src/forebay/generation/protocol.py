"""The seam between those who want tokens and those who make them."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.errors import GenerationError
from forebay.trajectory import PolicyVersion, Sampling, VersionSpan

CompletionFinish = Literal["stop", "length", "context", "abort", "deadline"]


class BadRequestError(GenerationError):
    """A request that no generator of this model can serve; asking again does not help."""


class DuplicateRequestError(BadRequestError):
    """A request with this id is still running; once it has ended, the id may be used again."""


class OverloadedError(GenerationError):
    """A generator that cannot take the request now: its queue is full, or it is not ready."""


class UnreachableError(GenerationError):
    """A generator that does not answer; another one may."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prompt and how to continue it.

    Args:
        request_id: Unique; a second request with the id of a running one is refused.
        episode_id: Requests of one episode share it, so that its KV cache can be reused; empty for none.
        prompt: [P] int32 token ids.
        sampling: Distribution to sample.
        max_tokens: Most tokens to sample, at least 1.
        stop_tokens: Sampling ends after one of these; it is part of the completion.
        seed: Same seed, prompt and weights: same tokens, whatever else the engine does.
        min_version: The request is held until the weights are at least this version.
        max_kv_staleness: A cached prefix whose oldest version lies further back than this is computed again.
        deadline_s: Seconds after which it ends with what it has.
        keep: Keep the KV cache for a follow-up request of the episode.
    """

    request_id: str
    prompt: npt.NDArray[np.int32]
    sampling: Sampling
    max_tokens: int
    stop_tokens: tuple[int, ...] = ()
    seed: int = 0
    episode_id: str = ""
    min_version: PolicyVersion = PolicyVersion(0, 0)
    max_kv_staleness: int | None = None
    deadline_s: float | None = None
    keep: bool = False


class Completion(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What was sampled.

    Args:
        tokens: [N] int32, the stop token included.
        logprobs: [N] float32, nats, of the distribution that was sampled.
        version_spans: Runs that cover the N tokens.
        finish: `stop`, `length` (max_tokens), `context` (no room), `abort`, or `deadline`.
        wait_s: From arrival to the first decode.
        generate_s: From the first decode to the end.
        num_prefilled: Prompt tokens that had to be computed.
        num_cached: Prompt tokens whose KV was reused.
        queue_s: Part of `wait_s`: from arrival until there was a slot; the rest computed the prompt.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    version_spans: tuple[VersionSpan, ...]
    finish: CompletionFinish
    wait_s: float = 0.0
    generate_s: float = 0.0
    num_prefilled: int = 0
    num_cached: int = 0
    queue_s: float = 0.0


class GeneratorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a generator says about itself.

    Args:
        version: The version it serves now.
        context: Most tokens of prompt and completion together.
        vocabulary: Ids below this may appear in prompts and completions.
        model: Fingerprint of the architecture.
        slots: Sequences it decodes at once.
    """

    version: PolicyVersion
    context: int
    vocabulary: int
    model: str = ""
    slots: int = 0


class Generator(Protocol):
    """Something that continues prompts; the JAX engine or vLLM, over HTTP or in process."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt.

        Raises:
            GenerationError: The request is refused (too long, bad ids) or the generator failed.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request; it completes with finish `abort`. Unknown ids are ignored."""
        ...

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache kept for an episode. Unknown ids are ignored."""
        ...

    async def info(self) -> GeneratorInfo:
        """Return the version served and the limits."""
        ...

    async def close(self) -> None:
        """Release connections or threads."""
        ...
