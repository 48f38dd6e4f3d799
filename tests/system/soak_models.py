"""What the soaks train: a dense model, adapters on one, or experts; by one process or several."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import jax
import numpy as np

from forebay.chat import small_chat, small_chat_files
from forebay.models.checkpoint_io import save_model
from forebay.models.config import ModelConfig
from forebay.models.experts import Experts
from forebay.models.hf import to_hf_tensors
from forebay.models.params import init_params

MODELS: Final = ("dense", "lora", "moe")
# A reference policy, adapters that stay apart from the model that they are published with.
LORA: Final = ("model.lora.rank=2", "objective.kl_coef=0.01", "weights.adapters=separate")
MOE: Final = ("model.router_aux_coef=0.01", "model.router_z_coef=0.001", "batching.max_programs=1")
# Only process 0 may keep compiled programs: the others compile again at every start, so there is little to.
SEVERAL: Final = ("batching.max_programs=1",)
MESHES: Final = {
    "dense": {2: ("mesh.fsdp=2",), 4: ("mesh.data=2", "mesh.fsdp=2")},
    "lora": {2: ("mesh.context=2",), 4: ("mesh.fsdp=2", "mesh.context=2")},
    "moe": {2: ("mesh.expert=2",), 4: ("mesh.fsdp=2", "mesh.expert=2")},
}


def settings_of(model: str, processes: int, directory: Path) -> tuple[str, ...]:
    """Return the settings that train a kind of model with some number of processes.

    Args:
        model: One of `MODELS`.
        processes: Of the learner: 1, 2 or 4.
        directory: Where a model that must be read is written, once.
    """
    settings: tuple[str, ...] = ()
    if model == "lora":
        settings = LORA
    elif model == "moe":
        settings = (*MOE, f"model.path={write_experts(directory / 'experts')}")
    if processes > 1:
        settings += (*SEVERAL, *MESHES[model][processes], f"learner.processes={processes}")
    return settings


def write_experts(directory: Path) -> Path:
    """Write a tiny random Qwen3-MoE with the tokenizer of the small models, unless it is there."""
    if not directory.exists():
        chat = small_chat()
        config = ModelConfig(
            family="qwen3_moe",
            vocab_size=-(-chat.vocabulary // 16) * 16,
            num_real_tokens=chat.vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_size=16,
            max_position=96,
            head_norms=True,
            eos_ids=chat.stop_tokens,
            experts=Experts(4, 2, 32),
        )
        params = jax.tree.map(np.asarray, init_params(config, jax.random.key(0)))
        save_model(directory, config, to_hf_tensors(params, config), files=small_chat_files())
    return directory
