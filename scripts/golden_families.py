"""Makes `tests/golden/models/<family>/`: tiny random checkpoints, with logits and gradients of transformers.

    python scripts/golden_families.py [FAMILY ...]   # needs torch and transformers

Each directory is what `save_pretrained` writes, with weights in bfloat16, and `expected.safetensors` from the
same weights in float32 with eager attention: `tokens` [24], `logits` [24, V] and, under `gradient.NAME`, the
gradient of the mean negative log-likelihood of tokens 1 to 23. Windows are shorter than that. A mixture of
experts has its load-balancing loss under `aux_loss`, and its gradients are of the sum of both losses, under
the names of its file, which has experts one by one. No code of forebay is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "models"
NUM_TOKENS = 24
SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
GEMMA2 = {
    "query_pre_attn_scalar": 12,
    "sliding_window": 7,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
GEMMA3 = {
    "query_pre_attn_scalar": 12,
    "sliding_window": 7,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 28,
    "patch_size": 14,
}
MIXTRAL_NAMES = ("block_sparse_moe", "w1", "w3", "w2")
QWEN_NAMES = ("mlp", "gate_proj", "up_proj", "down_proj")
TEXT = transformers.Gemma3TextConfig
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=7),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, rope_parameters=YARN, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(
        **SIZES | {"num_hidden_layers": 3}, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES, num_local_experts=6, num_experts_per_tok=2, sliding_window=7
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False
    ),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES | {"num_hidden_layers": 3}, **GEMMA2),
    "gemma3_text": lambda: TEXT(**SIZES | {"num_hidden_layers": 8}, **GEMMA3),
    "gemma3": lambda: transformers.Gemma3Config(
        text_config=TEXT(**SIZES, **GEMMA3).to_dict(),
        vision_config=VISION | {"model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
        boi_token_index=40,
        eoi_token_index=41,
        image_token_index=42,
        eos_token_id=[2, 5],
    ),
}


def make(name: str) -> None:
    """Write one directory."""
    torch.manual_seed(sum(map(ord, name)))
    config = CONFIGS[name]()
    wrapper = name == "gemma3"
    kind = transformers.Gemma3ForConditionalGeneration if wrapper else transformers.AutoModelForCausalLM
    build = kind._from_config if wrapper else kind.from_config
    model = build(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(draw(key, value, is_offset="gemma" in name).bfloat16().float())
    tokens = torch.randint(3, 40, (NUM_TOKENS,))
    is_mixture = hasattr(config, "num_experts_per_tok")
    output = model(input_ids=tokens[None], **({"output_router_logits": True} if is_mixture else {}))
    logits = output.logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:])
    expected = {"tokens": tokens, "logits": logits.detach()}
    if is_mixture:
        loss = loss + output.aux_loss
        expected["aux_loss"] = output.aux_loss.detach()
    loss.backward()
    for key, value in model.named_parameters():
        if value.grad is not None:
            expected |= {f"gradient.{named}": part for named, part in unfused(key, value.grad.clone(), name)}
    directory = GOLDEN / name
    model.bfloat16().save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "model.safetensors").chmod(0o644)
    path = directory / "expected.safetensors"
    save_file({key: value.contiguous() for key, value in expected.items()}, path)
    path.chmod(0o644)
    print(name, sum(path.stat().st_size for path in directory.iterdir()), "bytes", transformers.__version__)


def unfused(key: str, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a parameter under the names that they have in files."""
    prefix, found, suffix = key.partition(".mlp.experts.")
    if not found:
        yield key.replace(".mlp.", ".block_sparse_moe.") if name == "mixtral" else key, value
        return
    block, gate, up, down = MIXTRAL_NAMES if name == "mixtral" else QWEN_NAMES
    for number, expert in enumerate(value):
        parts = dict(zip((gate, up), expert.chunk(2), strict=True)) if "gate" in suffix else {down: expert}
        yield from (
            (f"{prefix}.{block}.experts.{number}.{part}.weight", half) for part, half in parts.items()
        )


def draw(key: str, value: Any, *, is_offset: bool) -> Any:
    """Return weights by which every feature changes the logits."""
    noise = torch.randn(value.shape)
    if "norm" in key:
        return 0.3 * noise + (0.0 if is_offset else 1.0)
    return (0.5 if key.endswith("bias") else 0.3) * noise


if __name__ == "__main__":
    for family in sys.argv[1:] or CONFIGS:
        make(family)
