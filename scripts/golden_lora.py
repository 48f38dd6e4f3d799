"""Makes `tests/golden/lora/<family>/`: adapters, with logits and gradients of PEFT on transformers.

    python scripts/golden_lora.py [FAMILY ...]   # needs torch, transformers and peft

The models are those of `tests/golden/models`, in float32 with eager attention. Each directory is what PEFT's
`save_pretrained` writes, A and B drawn at random, and `expected.safetensors`: `logits` [24, V] of the tokens
of the model's own expected values, `gradient.NAME` of the mean negative log-likelihood of tokens 1 to 23 with
regard to every adapter, and `merged.NAME`, the weights of the first block after `merge_and_unload`. No code
of forebay is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
SETTINGS = {
    "llama": {"r": 4, "lora_alpha": 8, "target_modules": LINEAR},
    "mistral": {"r": 3, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]},
    "qwen2": {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": LINEAR},
    "qwen3": {"r": 2, "lora_alpha": 4, "target_modules": LINEAR},
    "gemma2": {"r": 4, "lora_alpha": 8, "target_modules": LINEAR},
    "gemma3_text": {"r": 1, "lora_alpha": 1, "target_modules": ["o_proj", "down_proj"]},
    "mixtral": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION},
    "qwen3_moe": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION},
}


def make(family: str) -> None:
    """Write one directory."""
    torch.manual_seed(sum(map(ord, family)))
    base = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDEN / "models" / family, attn_implementation="eager", dtype=torch.float32
    )
    model = peft.get_peft_model(base, peft.LoraConfig(**SETTINGS[family], task_type="CAUSAL_LM")).eval()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        for value in trained.values():
            value.copy_(0.3 * torch.randn(value.shape))
    tokens = load_file(GOLDEN / "models" / family / "expected.safetensors")["tokens"]
    logits = model(input_ids=tokens[None]).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1], tokens[1:]).backward()
    expected = {"logits": logits.detach()}
    expected |= {f"gradient.{name.replace('.default', '')}": value.grad for name, value in trained.items()}
    directory = GOLDEN / "lora" / family
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    _without_place(directory / "adapter_config.json")
    merged = model.merge_and_unload()
    expected |= {
        f"merged.{name}": value.detach()
        for name, value in merged.named_parameters()
        if ".layers.0." in name and name.split(".")[-2] in SETTINGS[family]["target_modules"]
    }
    save_file(
        {name: value.contiguous() for name, value in expected.items()}, directory / "expected.safetensors"
    )
    for path in directory.iterdir():
        path.chmod(0o644)
    print(family, sum(path.stat().st_size for path in directory.iterdir()), "bytes", peft.__version__)


def _without_place(path: Path) -> None:
    """Take out where the model lay on this machine."""
    text = path.read_text().replace(str(GOLDEN / "models") + "/", "")
    path.write_text(text)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SETTINGS:
        make(chosen)
