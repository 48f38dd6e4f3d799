"""Model families: how each `model_type` of Hugging Face maps to what is computed.

`FAMILIES` is the whole list; a family is added there. All families are decoders of one form (RMSNorm, rotary
grouped-query attention, a gated feed-forward layer); they differ in what `Family.fixed` says, and in which
blocks see only a window.

References:
    transformers 5.24, `models/*/configuration_*.py`, for the keys and what is assumed without them.
    Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models; Jiang et al. 2023,
    Mistral 7B; Qwen Team 2024, Qwen2.5; Qwen Team 2025, Qwen3; Gemma Team 2024, Gemma 2; Gemma Team 2025,
    Gemma 3; Jiang et al. 2024, Mixtral of Experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.errors import ModelError
from forebay.models.experts import Experts

if TYPE_CHECKING:
    from forebay.models.config import ModelConfig

Entry = Mapping[str, Any]
FULL_ATTENTION: Final = "full_attention"
SLIDING_ATTENTION: Final = "sliding_attention"
LOCAL_THETA: Final = "rope_local_base_freq"
# Models of text and images, and the family of their text.
WRAPPERS: Final = {"gemma3": "gemma3_text"}


class Family(NamedTuple):
    """How one `model_type` maps to a `ModelConfig`.

    Attributes:
        architecture: Its class in transformers.
        defaults: What transformers assumes for keys that are left out, beyond what all families share.
        fixed: Fields that all of its models share.
        keys: Further keys that it reads, and the field that each is.
        activation: The keys that name the activation, and the value that they must have.
        is_local: Whether a block sees only the window, where `layer_types` does not say; None: none does.
        has_layer_types: Whether its models say of each block which kind it is.
        written: Returns further keys of a model's entry.
        experts: Reads what its mixtures of experts are; None: its models have none.
        experts_keys: Keys that `experts` reads and that may be left out.
    """

    architecture: str
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}
    activation: tuple[tuple[str, ...], str] = (("hidden_act",), "silu")
    is_local: Callable[[Entry, int], bool] | None = None
    has_layer_types: bool = True
    written: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    experts: Callable[[Entry], Experts] | None = None
    experts_keys: tuple[str, ...] = ()


def integer(values: Entry, key: str) -> int:
    """Return a whole number of a configuration.

    Raises:
        ModelError: It is missing or something else.
    """
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"model configuration needs an integer {key}", got=repr(value))
    return value


def number(values: Entry, key: str) -> int | float:
    """Return a number of a configuration.

    Raises:
        ModelError: It is missing or something else.
    """
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"model configuration needs a number {key}", got=repr(value))
    return value


def _window_pattern(config: ModelConfig) -> dict[str, Any]:
    """Return Gemma 3's keys of local layers; readers of before `layer_types` know only the period."""
    period = len(config.pattern)
    local_first = [kind.window is not None for kind in config.pattern] == [True] * (period - 1) + [False]
    entry: dict[str, Any] = {
        LOCAL_THETA: next((kind.rope_theta for kind in config.pattern if kind.rope_theta), 10_000.0)
    }
    return entry | ({"sliding_window_pattern": period} if local_first else {})


def _upper_layers(config: ModelConfig) -> dict[str, Any]:
    """Return Qwen's keys of windows, which its upper layers have if any."""
    local = [layer for layer, kind in enumerate(config.layer_kinds) if kind.window is not None]
    first = local[0] if local else config.num_layers
    return {"use_sliding_window": bool(local), "max_window_layers": first}


def _experts_of_mixtral(values: Entry) -> Experts:
    return Experts(
        number=integer(values, "num_local_experts"),
        per_token=integer(values, "num_experts_per_tok"),
        width=integer(values, "intermediate_size"),
        balance_coefficient=float(number(values, "router_aux_loss_coef")),
    )


def _experts_of_qwen(values: Entry) -> Experts:
    # transformers 5 writes the number under the second key, which it did not know before.
    numbers = {integer(values, key) for key in ("num_experts", "num_local_experts") if key in values}
    if len(numbers) > 1:
        raise ModelError("num_experts and num_local_experts say different numbers", got=sorted(numbers))
    return Experts(
        number=next(iter(numbers), 128),
        per_token=integer(values, "num_experts_per_tok"),
        width=integer(values, "moe_intermediate_size"),
        renormalize=bool(values["norm_topk_prob"]),
        balance_coefficient=float(number(values, "router_aux_loss_coef")),
    )


def _mixtral_keys(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    return {
        "num_local_experts": config.experts.number,
        "num_experts_per_tok": config.experts.per_token,
        "router_aux_loss_coef": config.experts.balance_coefficient,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
    }


def _qwen_mixture_keys(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    return {
        "attention_bias": False,
        "use_sliding_window": any(kind.window is not None for kind in config.pattern),
        "num_experts": config.experts.number,
        "num_experts_per_tok": config.experts.per_token,
        "moe_intermediate_size": config.experts.width,
        "norm_topk_prob": config.experts.renormalize,
        "router_aux_loss_coef": config.experts.balance_coefficient,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
    }


_LLAMA: Final = Family(
    architecture="LlamaForCausalLM",
    defaults={},
    has_layer_types=False,
    written=lambda config: {"attention_bias": False, "mlp_bias": False},
)
_MISTRAL: Final = Family(
    architecture="MistralForCausalLM",
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    is_local=lambda values, layer: values["sliding_window"] is not None,
    has_layer_types=False,
)
_QWEN_DEFAULTS: Final = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_QWEN2: Final = Family(
    architecture="Qwen2ForCausalLM",
    defaults={**_QWEN_DEFAULTS, "attention_bias": True},
    fixed={"attention_bias": True},
    is_local=lambda values, layer: (
        values["sliding_window"] is not None and layer >= integer(values, "max_window_layers")
    ),
    written=_upper_layers,
)
_QWEN3: Final = _QWEN2._replace(
    architecture="Qwen3ForCausalLM",
    defaults={**_QWEN_DEFAULTS, "head_dim": 128},
    fixed={"head_norms": True},
    written=lambda config: {"attention_bias": False, **_upper_layers(config)},
)
_MIXTRAL: Final = _MISTRAL._replace(
    architecture="MixtralForCausalLM",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    },
    written=_mixtral_keys,
    experts=_experts_of_mixtral,
)
_QWEN3_MIXTURE: Final = Family(
    architecture="Qwen3MoeForCausalLM",
    defaults={
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
    fixed={"head_norms": True},
    is_local=lambda values, layer: values["sliding_window"] is not None,
    has_layer_types=False,
    written=_qwen_mixture_keys,
    experts=_experts_of_qwen,
    experts_keys=("num_experts", "num_local_experts"),
)
_GEMMA_SIZES: Final = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2: Final = Family(
    architecture="Gemma2ForCausalLM",
    defaults={
        **_GEMMA_SIZES,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    fixed={
        "activation": "gelu_tanh",
        "post_norms": True,
        "unit_offset_norms": True,
        "scaled_embedding": True,
    },
    keys={
        "query_pre_attn_scalar": "query_pre_attn_scalar",
        "attn_logit_softcapping": "attention_softcap",
        "final_logit_softcapping": "final_softcap",
    },
    activation=(("hidden_act", "hidden_activation"), "gelu_pytorch_tanh"),
    is_local=lambda values, layer: layer % 2 == 0,
)
_GEMMA3: Final = _GEMMA2._replace(
    architecture="Gemma3ForCausalLM",
    defaults={
        **_GEMMA_SIZES,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        LOCAL_THETA: 10_000.0,
        "sliding_window_pattern": 6,
    },
    fixed={**_GEMMA2.fixed, "head_norms": True},
    keys={
        "query_pre_attn_scalar": "query_pre_attn_scalar",
        "final_logit_softcapping": "final_softcap",
    },
    is_local=lambda values, layer: bool((layer + 1) % integer(values, "sliding_window_pattern")),
    written=_window_pattern,
)
FAMILIES: Final[dict[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN3_MIXTURE,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
}
