"""Our records to the wire and back; nothing is padded, cut or guessed on the way; without JAX.

Weights are labelled "incarnation.version"; on vLLM, whose completions do not tell how old their KV cache is,
the label also names the oldest version that may have written it, and the run: "1.38/1.32@RUN". vLLM must run
with `logprobs_mode=processed_logprobs`: its default reports logprobs before temperature, which are not those
of the distribution that was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from forebay.errors import RecordError
from forebay.generation.http_records import (
    Choice,
    GenerateBody,
    GenerateResponse,
    Logprobs,
    RequestExtension,
    ResponseExtension,
    SamplingParams,
    TokenLogprob,
    WeightVersionSpan,
)
from forebay.generation.protocol import (
    BadRequestError,
    Completion,
    CompletionFinish,
    GenerationRequest,
)
from forebay.trajectory import PolicyVersion, Sampling, VersionSpan

# vLLM sends this where it has no logprob.
_MISSING_LOGPROB = -9999.0
# The strongest that vLLM takes: a masked id keeps e^-100 of its odds, which float32 rounds to none.
_MASKED_BIAS = -100.0
_VLLM_FINISH: dict[CompletionFinish, str] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "abort": "abort",
    "deadline": "abort",
}
# Sampling parameters that would change the distribution or the reply; each is accepted at its neutral value
# only.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop": (None, [], ""),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
    "repetition_detection": (None,),
    "extra_args": (None, {}),
    "logprob_token_ids": (None,),
}
_WITHOUT_EFFECT = frozenset(
    {"ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind"}
    | {
        "include_stop_str_in_output",
        "flat_logprobs",
        "skip_reading_prefix_cache",
        "skip_clone",
        "stream_interval",
    }
)

_encoder = msgspec.json.Encoder()
_body_decoder = msgspec.json.Decoder(GenerateBody)
_response_decoder = msgspec.json.Decoder(GenerateResponse)


def version_label(version: PolicyVersion) -> str:
    """Return the label of a version.

    Example:
        >>> version_label(PolicyVersion(1, 38))
        '1.38'
    """
    return f"{version.incarnation}.{version.version}"


def parse_version(label: str) -> PolicyVersion:
    """Return the version that a label names.

    Raises:
        RecordError: The label was not made by `version_label`.

    Example:
        >>> parse_version("1.38")
        PolicyVersion(incarnation=1, version=38)
    """
    incarnation, _, version = label.partition(".")
    if not (incarnation.isascii() and incarnation.isdigit() and version.isascii() and version.isdigit()):
        raise RecordError(
            "bad_version", "weights carry no label of the form incarnation.version", got=repr(label)
        )
    return PolicyVersion(int(incarnation), int(version))


def cache_label(version: PolicyVersion, oldest_cache: PolicyVersion, run_id: str = "") -> str:
    """Return the label of a run's version whose KV cache may be older than it.

    Example:
        >>> cache_label(PolicyVersion(1, 38), PolicyVersion(1, 32), "mine")
        '1.38/1.32@mine'
    """
    label = f"{version_label(version)}/{version_label(oldest_cache)}"
    return f"{label}@{run_id}" if run_id else label


def parse_label(label: str, run_id: str = "") -> tuple[PolicyVersion, PolicyVersion | None]:
    """Return the version of a label, and that of the oldest cache if it names one.

    Args:
        label: What a server says.
        run_id: The run that must have labelled it; empty for any.

    Raises:
        RecordError: It was made neither by `version_label` nor by `cache_label`, or for another run.

    Example:
        >>> parse_label("1.38/1.32@mine", "mine")[1]
        PolicyVersion(incarnation=1, version=32)
    """
    versions, _, owner = label.partition("@")
    if run_id and owner != run_id:
        raise RecordError(
            "bad_version", "the weights are not labelled by this run", got=repr(label[:200]), limit=run_id
        )
    version, slash, oldest_cache = versions.partition("/")
    return parse_version(version), parse_version(oldest_cache) if slash else None


def adapter_name(run_id: str) -> str:
    """Return what vLLM knows the adapters of a run by.

    Example:
        >>> adapter_name("mine")
        'forebay-mine'
    """
    return f"forebay-{run_id}"


def encode_request(request: GenerationRequest, masked: Sequence[int] = (), model: str | None = None) -> bytes:
    """Return the body that asks for a completion; vLLM understands it too.

    Args:
        request: What is asked.
        masked: Ids that must not be sampled, for vLLM: the padding of its vocabulary. Our engine masks its
            own.
        model: What is to continue it, for vLLM with adapters; None: the model itself.
    """
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": request.seed,
        "stop_token_ids": list(request.stop_tokens),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    if masked:
        params["logit_bias"] = {str(token): _MASKED_BIAS for token in masked}
    body = GenerateBody(
        request_id=request.request_id,
        token_ids=request.prompt.tolist(),
        sampling_params=params,
        model=model,
        forebay=RequestExtension(
            episode_id=request.episode_id,
            min_version=request.min_version,
            max_kv_staleness=request.max_kv_staleness,
            deadline_s=request.deadline_s,
            keep=request.keep,
        ),
    )
    return _encoder.encode(body)


def decode_request(data: bytes, vocabulary: int, context: int) -> GenerationRequest:
    """Read a request.

    Args:
        data: Body of the request.
        vocabulary: Ids of prompt and stop tokens must lie below it.
        context: `max_tokens` of a request that leaves it out.

    Raises:
        BadRequestError: The body is malformed, has an id outside the vocabulary, or asks for something the
            engine does not do.
    """
    try:
        body = _body_decoder.decode(data)
        params = msgspec.convert(_supported(body), SamplingParams, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"malformed request: {error}") from error
    stops = tuple(params.stop_token_ids or ())
    _check_ids(body.token_ids, vocabulary, "token_ids")
    _check_ids(stops, vocabulary, "stop_token_ids")
    extension = body.forebay or RequestExtension()
    return GenerationRequest(
        request_id=body.request_id,
        prompt=np.array(body.token_ids, np.int32),
        sampling=Sampling(temperature=params.temperature, top_p=params.top_p, top_k=max(params.top_k, 0)),
        max_tokens=params.max_tokens or context,
        stop_tokens=stops,
        seed=params.seed or 0,
        episode_id=extension.episode_id,
        min_version=extension.min_version,
        max_kv_staleness=extension.max_kv_staleness,
        deadline_s=extension.deadline_s,
        keep=extension.keep,
    )


def encode_completion(request_id: str, completion: Completion) -> bytes:
    """Return the body that carries a completion."""
    tokens = completion.tokens.tolist()
    content = [
        TokenLogprob(token_id=token, logprob=logprob)
        for token, logprob in zip(tokens, completion.logprobs.tolist(), strict=True)
    ]
    versions: list[WeightVersionSpan] = []
    start = 0
    for span in completion.version_spans:
        versions.append(WeightVersionSpan(version_label(span.version), start, start + span.num_tokens))
        start += span.num_tokens
    choice = Choice(
        index=0,
        token_ids=tokens,
        logprobs=Logprobs(content),
        finish_reason=_VLLM_FINISH[completion.finish],
        stop_reason=tokens[-1] if completion.finish == "stop" else None,
        weight_versions=versions,
    )
    extension = ResponseExtension(
        finish=completion.finish,
        kv_versions=[version_label(span.kv_version) for span in completion.version_spans],
        wait_s=completion.wait_s,
        generate_s=completion.generate_s,
        num_prefilled=completion.num_prefilled,
        num_cached=completion.num_cached,
        queue_s=completion.queue_s,
    )
    return _encoder.encode(GenerateResponse(request_id=request_id, choices=[choice], forebay=extension))


def decode_completion(data: bytes, run_id: str = "") -> Completion:
    """Read a completion; any length that does not match is refused, never padded or cut.

    Args:
        data: Body of the response.
        run_id: The run whose weights must have sampled it, where labels name one; empty for any.

    Raises:
        RecordError: `malformed`, `logprob_mismatch`, `token_mismatch`, `logprob_missing`, `version_mismatch`,
            `bad_version` or `bad_finish`.
    """
    try:
        response = _response_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("malformed", f"malformed completion: {error}") from error
    if len(response.choices) != 1:
        raise RecordError("malformed", "a completion has exactly one choice", got=len(response.choices))
    choice, extension = response.choices[0], response.forebay
    tokens = choice.token_ids or []
    if tokens and not 0 <= min(tokens) <= max(tokens) < 1 << 31:
        raise RecordError(
            "malformed", "token ids must be int32 and not negative", got=[min(tokens), max(tokens)]
        )
    logprobs = _logprobs(tokens, choice)
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        version_spans=_version_spans(len(tokens), choice, extension, run_id),
        finish=extension.finish if extension else _finish(choice.finish_reason),
        wait_s=extension.wait_s if extension else 0.0,
        generate_s=extension.generate_s if extension else 0.0,
        num_prefilled=extension.num_prefilled if extension else 0,
        num_cached=extension.num_cached if extension else 0,
        queue_s=extension.queue_s if extension else 0.0,
    )


def empty_completion(finish: CompletionFinish, *, wait_s: float) -> Completion:
    """Return the completion of a request that was never sent to a generator."""
    return Completion(
        tokens=np.array([], np.int32),
        logprobs=np.array([], np.float32),
        version_spans=(),
        finish=finish,
        wait_s=wait_s,
    )


def _supported(body: GenerateBody) -> dict[str, Any]:
    if body.stream or body.output_mode != "tokens" or body.features or body.content_parts:
        raise BadRequestError(
            "only whole completions of plain token ids are served (stream, output_mode, features)"
        )
    known = {}
    for name, value in body.sampling_params.items():
        if name in SamplingParams.__struct_fields__:
            known[name] = value
        elif name not in _WITHOUT_EFFECT and value not in _NEUTRAL.get(name, ()):
            raise BadRequestError(f"sampling parameter {name!r} is not supported", got=repr(value)[:100])
    return {name: value for name, value in known.items() if value is not None}


def _check_ids(ids: list[int] | tuple[int, ...], vocabulary: int, what: str) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
        bad = next(token for token in ids if not 0 <= token < vocabulary)
        raise BadRequestError(
            f"{what} has an id outside the vocabulary",
            got=bad,
            limit=f"0 <= id < {vocabulary}",
            remedy="Use the tokenizer that belongs to the served model.",
        )


def _logprobs(tokens: list[int], choice: Choice) -> list[float]:
    content = (choice.logprobs.content if choice.logprobs else None) or []
    if len(content) != len(tokens):
        raise RecordError(
            "logprob_mismatch",
            "a completion needs one logprob per token",
            got=len(content),
            limit=len(tokens),
        )
    for token, entry in zip(tokens, content, strict=True):
        if entry.token_id != token:
            raise RecordError(
                "token_mismatch", "a logprob names another token", got=entry.token_id, limit=token
            )
        if entry.logprob <= _MISSING_LOGPROB:
            raise RecordError("logprob_missing", "a sampled token has no logprob", got=token)
    return [entry.logprob for entry in content]


def _version_spans(
    num_tokens: int, choice: Choice, extension: ResponseExtension | None, run_id: str
) -> tuple[VersionSpan, ...]:
    spans = choice.weight_versions or []
    versions = [parse_label(span.version, run_id) for span in spans]
    if extension:
        caches = [parse_version(label) for label in extension.kv_versions]
    else:  # a label that names no cache: the oldest that this request can have written is its first version
        caches = [cache or versions[0][0] for _, cache in versions]
    ends = [0, *(span.end for span in spans)]
    adjacent = all(span.start == end < span.end for span, end in zip(spans, ends, strict=False))
    if not adjacent or ends[-1] != num_tokens or len(caches) != len(spans):
        raise RecordError(
            "version_mismatch",
            "weight versions must cover the tokens without holes",
            got=[(span.start, span.end) for span in spans],
            limit=num_tokens,
        )
    return tuple(
        VersionSpan(span.end - span.start, version, cache)
        for span, (version, _), cache in zip(spans, versions, caches, strict=True)
    )


def _finish(reason: str | None) -> CompletionFinish:
    match reason:
        case "stop" | "length" | "abort":
            return reason
    raise RecordError("bad_finish", "a completion ended for an unknown reason", got=repr(reason))
