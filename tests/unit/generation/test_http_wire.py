from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import RecordError
from forebay.generation.http_wire import (
    cache_label,
    decode_completion,
    decode_request,
    encode_completion,
    encode_request,
    parse_label,
    parse_version,
    version_label,
)
from forebay.generation.protocol import BadRequestError, Completion
from forebay.trajectory import PolicyVersion, Sampling, VersionSpan
from tests.unit.generation.fakes import request, version

# What vLLM 0.32 sends (`GenerateTokensResponse.model_dump`), with the fields that it always writes.
VLLM_RESPONSE: dict[str, Any] = {
    "request_id": "generate-tokens-r",
    "model": "policy",
    "created": 1790000000,
    "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "prompt_token_id_logprobs": None,
    "prompt_token_ids": None,
    "mm_placeholders": None,
    "metrics": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "output_mode": "tokens",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": 2,
            "token_ids": [7, 8, 2],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [
                {"version": "0.4", "start": 0, "end": 2},
                {"version": "0.5", "start": 2, "end": 3},
            ],
            "logprobs": {
                "content": [
                    {"token_id": 7, "logprob": -0.5, "rank": 1, "top_logprobs": []},
                    {
                        "token_id": 8,
                        "logprob": -1.25,
                        "rank": 2,
                        "top_logprobs": [{"token_id": 8, "logprob": -1.25, "rank": 2}],
                    },
                    {"token_id": 2, "logprob": -0.125, "rank": 1, "top_logprobs": []},
                ]
            },
        }
    ],
}


def changed(**fields: Any) -> bytes:
    body = json.loads(json.dumps(VLLM_RESPONSE))
    body["choices"][0] |= fields
    return json.dumps(body).encode()


def body(**fields: Any) -> bytes:
    return json.dumps({"request_id": "r", "token_ids": [1, 2], "sampling_params": {}} | fields).encode()


def test_response_of_vllm_is_read() -> None:
    completion = decode_completion(json.dumps(VLLM_RESPONSE).encode())
    assert completion.tokens.tolist() == [7, 8, 2]
    assert completion.logprobs.tolist() == [-0.5, -1.25, -0.125]
    assert completion.version_spans == (
        VersionSpan(2, version(4), version(4)),
        VersionSpan(1, version(5), version(4)),
    )
    assert completion.finish == "stop"


def test_request_has_the_fields_that_vllm_reads() -> None:
    sent = json.loads(
        encode_request(
            request(
                "r",
                [1, 2],
                sampling=Sampling(temperature=0.6, top_p=0.9, top_k=5),
                max_tokens=8,
                stop_tokens=(2,),
                seed=11,
            )
        )
    )
    assert sent["request_id"] == "r"
    assert sent["token_ids"] == [1, 2]
    assert sent["sampling_params"] == {
        "max_tokens": 8,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 11,
        "stop_token_ids": [2],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


@given(
    prompt=st.lists(st.integers(0, 99), min_size=1, max_size=20),
    temperature=st.floats(0, 100, width=32),
    seed=st.integers(0, 2**63 - 1),
    max_tokens=st.integers(1, 1000),
    stops=st.lists(st.integers(0, 99), max_size=4),
    episode=st.text(max_size=20),
    minimum=st.tuples(st.integers(0, 9), st.integers(0, 10**6)),
    bound=st.none() | st.integers(0, 100),
    deadline_s=st.none() | st.floats(0.001, 1e6),
    keep=st.booleans(),
)
def test_request_round_trip(
    prompt: list[int],
    temperature: float,
    seed: int,
    max_tokens: int,
    stops: list[int],
    episode: str,
    minimum: tuple[int, int],
    bound: int | None,
    deadline_s: float | None,
    keep: bool,
) -> None:
    sent = request(
        "r",
        prompt,
        sampling=Sampling(temperature=temperature),
        seed=seed,
        max_tokens=max_tokens,
        stop_tokens=tuple(stops),
        episode_id=episode,
        min_version=PolicyVersion(*minimum),
        max_kv_staleness=bound,
        deadline_s=deadline_s,
        keep=keep,
    )
    got = decode_request(encode_request(sent), 100, 1000)
    assert got.prompt.tolist() == prompt
    for name in sent.__struct_fields__:
        if name != "prompt":
            assert getattr(got, name) == getattr(sent, name), name


def test_completion_round_trip_is_exact() -> None:
    logprobs = np.array([-0.1, -1e-7, -88.72283], np.float32)
    sent = Completion(
        tokens=np.array([3, 1, 2], np.int32),
        logprobs=logprobs,
        version_spans=(VersionSpan(1, version(4), version(2)), VersionSpan(2, version(5), version(2))),
        finish="context",
        wait_s=0.25,
        queue_s=0.125,
        generate_s=1.5,
        num_prefilled=7,
        num_cached=5,
    )
    data = encode_completion("r", sent)
    got = decode_completion(data)
    assert got.tokens.tolist() == [3, 1, 2]
    assert got.logprobs.tobytes() == logprobs.tobytes()
    for name in ("version_spans", "finish", "wait_s", "generate_s", "num_prefilled", "num_cached", "queue_s"):
        assert getattr(got, name) == getattr(sent, name)
    # A client of vLLM sees one of vLLM's reasons.
    assert json.loads(data)["choices"][0]["finish_reason"] == "length"


def test_empty_completion_round_trip() -> None:
    empty = np.empty(0, np.int32)
    sent = Completion(tokens=empty, logprobs=empty.astype(np.float32), version_spans=(), finish="abort")
    got = decode_completion(encode_completion("r", sent))
    assert (len(got.tokens), len(got.logprobs), got.version_spans, got.finish) == (0, 0, (), "abort")


def test_c02_fewer_logprobs_than_tokens_are_refused() -> None:
    content = VLLM_RESPONSE["choices"][0]["logprobs"]["content"]
    with pytest.raises(RecordError, match=r"got 3, limit 4") as caught:
        decode_completion(changed(token_ids=[7, 8, 2, 9], logprobs={"content": content}))
    assert caught.value.reason == "logprob_mismatch"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logprobs": None}, "logprob_mismatch"),
        ({"token_ids": [7, 9, 2]}, "token_mismatch"),
        ({"weight_versions": None}, "version_mismatch"),
        ({"weight_versions": [{"version": "0.4", "start": 0, "end": 2}]}, "version_mismatch"),
        (
            {
                "weight_versions": [
                    {"version": "0.4", "start": 0, "end": 1},
                    {"version": "0.4", "start": 2, "end": 3},
                ]
            },
            "version_mismatch",
        ),
        ({"weight_versions": [{"version": "default", "start": 0, "end": 3}]}, "bad_version"),
        ({"finish_reason": "repetition"}, "bad_finish"),
        ({"token_ids": [7, -8, 2]}, "malformed"),
        ({"token_ids": [7, 1 << 31, 2]}, "malformed"),
    ],
)
def test_contradictions_are_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode_completion(changed(**fields))
    assert caught.value.reason == reason


def test_logprob_that_vllm_does_not_have_is_refused() -> None:
    content = [{"token_id": token, "logprob": -9999.0} for token in (7, 8, 2)]
    with pytest.raises(RecordError) as caught:
        decode_completion(changed(logprobs={"content": content}))
    assert caught.value.reason == "logprob_missing"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, 100]}, r"token_ids has an id outside the vocabulary \(got 100"),
        ({"token_ids": [-1]}, "got -1"),
        ({"token_ids": [10**30]}, "got 1000000000000000000000000000000"),
        ({"token_ids": ["1"]}, "Expected `int`"),
        ({"sampling_params": {"stop_token_ids": [100]}}, "stop_token_ids has an id outside"),
        ({"sampling_params": {"presence_penalty": 0.5}}, "'presence_penalty' is not supported"),
        ({"sampling_params": {"n": 2}}, "'n' is not supported"),
        ({"sampling_params": {"unheard_of": 1}}, "'unheard_of' is not supported"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"top_p": 0}}, "top_p"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"seed": -1}}, "seed"),
        ({"stream": True}, "stream"),
        ({"forebay": {"keeep": True}}, "keeep"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
    ],
)
def test_requests_that_cannot_be_served_name_the_reason(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        decode_request(body(**fields), 100, 64)


@pytest.mark.parametrize("data", [b"", b"[1", b"\xff\xfe", b"null", b"[]", b'"text"', b"{}"])
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError, match="malformed request"):
        decode_request(data, 100, 64)


def test_neutral_parameters_and_foreign_fields_are_accepted() -> None:
    got = decode_request(
        body(
            sampling_params={
                "presence_penalty": 0.0,
                "n": 1,
                "stop": [],
                "top_k": -1,
                "skip_special_tokens": True,
            },
            model="policy",
            cache_salt="s",
        ),
        100,
        64,
    )
    assert (got.max_tokens, got.sampling, got.seed) == (64, Sampling(), 0)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_version_label_round_trip(incarnation: int, number: int) -> None:
    assert parse_version(version_label(PolicyVersion(incarnation, number))) == (incarnation, number)


def test_a_label_of_vllm_names_the_oldest_cache_too() -> None:
    assert cache_label(version(38, 1), version(32, 1)) == "1.38/1.32"
    assert cache_label(version(38, 1), version(32, 1), "mine") == "1.38/1.32@mine"
    assert parse_label("1.38/1.32@mine", "mine") == (version(38, 1), version(32, 1))
    assert parse_label("1.38/1.32@mine")[0] == version(38, 1)
    for foreign in ("1.38/1.32@other", "1.38/1.32", "1.38@", "mine"):
        with pytest.raises(RecordError, match="not labelled by this run"):
            parse_label(foreign, "mine")
    assert parse_label("1.38/1.32") == (version(38, 1), version(32, 1))
    assert parse_label("1.38") == (version(38, 1), None)
    for label in ("1.38/", "1.38/x", "/1.32", "unknown"):
        with pytest.raises(RecordError, match="label"):
            parse_label(label)


def test_spans_of_vllm_carry_the_cache_of_their_label() -> None:
    labels = [{"version": "0.4/0.2", "start": 0, "end": 2}, {"version": "0.5/0.5", "start": 2, "end": 3}]
    spans = decode_completion(changed(weight_versions=labels)).version_spans
    assert spans == (VersionSpan(2, version(4), version(2)), VersionSpan(1, version(5), version(5)))


@pytest.mark.parametrize("label", ["", "1", "1.", ".1", "a.b", "-1.2", "1.2.3", "٣.٤"])
def test_foreign_labels_are_refused(label: str) -> None:
    with pytest.raises(RecordError, match="label"):
        parse_version(label)
