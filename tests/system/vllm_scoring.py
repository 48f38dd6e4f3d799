"""Scores and continues prompts with vLLM, model after model: run by vLLM's own Python, without forebay.

    python vllm_scoring.py JOBS RESULTS

JOBS is a JSON list of objects: `model`, a directory; `adapter`, a directory or null, and its `rank`;
`prompts`, lists of ids; `max_tokens`. RESULTS gets a line of JSON for each: a list of what vLLM says to every
prompt, or the error that it ended with. Of a prompt, `prompt_logprobs` from its second token on, greedy
`tokens` and their `logprobs`, nats. With an adapter vLLM's CPU build cannot tell logprobs of prompts: none.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One process: an import of vLLM takes longer than all that is done with a tiny model.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
MAX_LENGTH = 128
CACHE_BYTES = 64 << 20
LORA_RANKS = (8, 16, 32, 64)
# What vLLM refuses a model with.
_ERRORS = (AssertionError, AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


def answers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what vLLM says to every prompt of a job."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    adapter = job["adapter"]
    options: dict[str, Any] = {}
    if adapter:
        rank = next(rank for rank in LORA_RANKS if rank >= job["rank"])
        options = {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    model = LLM(
        job["model"],
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=MAX_LENGTH,
        max_num_seqs=4,
        kv_cache_memory_bytes=CACHE_BYTES,
        **options,
    )
    greedy = SamplingParams(
        temperature=0.0,
        max_tokens=job["max_tokens"],
        logprobs=0,
        prompt_logprobs=None if adapter else 0,
        ignore_eos=True,
        detokenize=False,
    )
    said = model.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]],
        greedy,
        lora_request=LoRARequest("adapter", 1, adapter) if adapter else None,
        use_tqdm=False,
    )
    return [_scores(one) for one in said]


def _scores(answer: Any) -> dict[str, Any]:
    (completion,) = answer.outputs
    prompt = list(answer.prompt_token_ids)
    return {
        "prompt_logprobs": [
            said[token].logprob
            for token, said in zip(prompt[1:], (answer.prompt_logprobs or [])[1:], strict=False)
        ],
        "tokens": list(completion.token_ids),
        "logprobs": [
            said[token].logprob for token, said in zip(completion.token_ids, completion.logprobs, strict=True)
        ],
    }


def results(jobs: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]] | str]:
    """Yield the answers, or the error, of each job."""
    from vllm.distributed import cleanup_dist_env_and_memory

    for job in jobs:
        try:
            yield answers(job)
        except _ERRORS as error:
            yield f"{type(error).__name__}: {error}"
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    jobs_path, results_path = map(Path, sys.argv[1:])
    with results_path.open("w", buffering=1) as lines:
        lines.writelines(json.dumps(one) + "\n" for one in results(json.loads(jobs_path.read_text())))
