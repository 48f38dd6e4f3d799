"""A Hugging Face `config.json` to the fields of a `ModelConfig` and back, by the table of families.

What an entry leaves out is filled in as transformers does, and a key that changes what is computed is either
read or refused by name: ignoring one gives wrong numbers without an error. Keys that no listed family
computes are left alone, as transformers leaves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ModelError
from forebay.models.families import (
    FAMILIES,
    FULL_ATTENTION,
    LOCAL_THETA,
    SLIDING_ATTENTION,
    WRAPPERS,
    Entry,
    Family,
    integer,
    number,
)
from forebay.models.layer_kinds import LayerKind, shortest_pattern
from forebay.models.rope_scaling import read_rope_scaling

if TYPE_CHECKING:
    from forebay.models.config import ModelConfig

ANOTHER_FAMILY: Final = "Choose a model of a supported family: another architecture computes something else."
ANOTHER_MODEL: Final = "Choose a model without it: computing it as if it were not there gives wrong numbers."
# Fields that are sizes, and their keys.
SIZES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "max_position": "max_position_embeddings",
}
_MAX_LAYERS: Final = 10_000
_LAYER_TYPES: Final = (FULL_ATTENTION, SLIDING_ATTENTION)
_OF_WRAPPER: Final = (
    "bos_token_id",
    "eos_token_id",
    "num_real_tokens",
    "quantization_config",
    "tie_word_embeddings",
)
_DEFAULTS: Final[dict[str, Any]] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
# Keys of features that are not computed unless a family reads them, and the value that switches each off.
_SWITCHED_OFF: Final[dict[str, object]] = {
    "add_cross_attention": False,
    "alibi": False,
    "attention_bias": False,
    "attention_chunk_size": None,
    "attention_dropout": 0.0,
    "attention_multiplier": None,
    "attn_logit_softcapping": None,
    "attn_temperature_tuning": False,
    "clip_qkv": None,
    "compression_config": None,
    "decoder_sparse_step": 1,
    "embedding_multiplier": 1.0,
    "final_logit_softcapping": None,
    "is_encoder_decoder": False,
    "kv_lora_rank": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "mlp_bias": False,
    "mlp_only_layers": None,
    "moe_intermediate_size": None,
    "n_routed_experts": None,
    "n_shared_experts": None,
    "no_rope_layer_interval": None,
    "no_rope_layers": None,
    "num_experts": 0,
    "num_local_experts": 0,
    "original_max_position_embeddings": None,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
    "pruned_heads": None,
    "qk_layernorm": False,
    "qkv_bias": False,
    "quantization_config": None,
    "query_pre_attn_scalar": None,
    "residual_multiplier": 1.0,
    "rope_interleaved": False,
    "rotary_pct": 1.0,
    "router_jitter_noise": 0.0,
    "shared_expert_intermediate_size": None,
    "sliding_window": None,
    "use_bidirectional_attention": False,
    "use_parallel_residual": False,
    "use_qk_norm": False,
    "use_sliding_window": False,
}


def text_entry(entry: Entry) -> Entry:
    """Return the text model's part of an entry: the entry itself, but for a model of text and images."""
    if entry.get("model_type") not in WRAPPERS:
        return entry
    text = entry.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelError(f"model_type {entry['model_type']!r} needs a text_config", got=repr(text))
    outer = {key: entry[key] for key in _OF_WRAPPER if entry.get(key) is not None}
    return {**text, **outer, "model_type": WRAPPERS[entry["model_type"]]}


def read_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of a `ModelConfig` that the entry of a text model determines.

    Raises:
        ModelError: Another family, a feature that is not computed, a missing key or a value of the wrong
            type, named.
    """
    family = FAMILIES.get(str(entry.get("model_type")))
    if family is None:
        known = ", ".join(map(repr, [*FAMILIES, *WRAPPERS]))
        raise ModelError(
            "unsupported model_type", got=repr(entry.get("model_type")), limit=known, remedy=ANOTHER_FAMILY
        )
    _refuse_unsupported(entry, family)
    values = _filled_in(entry, family)
    whole, local = _rope_entries(values, family)
    local_theta = float(number(local, "rope_theta")) if local else None
    fields: dict[str, Any] = {
        "family": values["model_type"],
        **{field: integer(values, key) for field, key in SIZES.items()},
        "rms_norm_eps": float(number(values, "rms_norm_eps")),
        "rope_theta": float(number(whole, "rope_theta")),
        "rope_scaling": read_rope_scaling(whole),
        "tie_word_embeddings": bool(values["tie_word_embeddings"]),
        "pattern": _pattern(values, family, local_theta),
    }
    for key, field in family.keys.items():
        fields[field] = None if values.get(key) is None else number(values, key)
    if family.experts is not None:
        fields["experts"] = family.experts(values)
    return fields | dict(family.fixed)


def write_entry(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` object of a model, for transformers and vLLM."""
    family = FAMILIES[config.family]
    names, activation = family.activation
    entry: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": config.family,
        **dict.fromkeys(names, activation),
        "torch_dtype": "float32",
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None,
        "rope_scaling": config.rope_scaling.to_hf() if config.rope_scaling else None,
    }
    entry |= {key: getattr(config, field) for field, key in SIZES.items()}
    entry |= {key: getattr(config, key) for key in ("rms_norm_eps", "rope_theta", "tie_word_embeddings")}
    entry |= {key: getattr(config, field) for key, field in family.keys.items()}
    if family.is_local is not None:
        entry["sliding_window"] = next((kind.window for kind in config.pattern if kind.window), None)
        if family.has_layer_types:
            entry["layer_types"] = [_layer_type(kind) for kind in config.layer_kinds]
    if config.num_real_tokens != config.vocab_size:
        entry["num_real_tokens"] = config.num_real_tokens
    return entry | family.written(config)


def _filled_in(entry: Entry, family: Family) -> dict[str, Any]:
    values = {**_DEFAULTS, **family.defaults, **entry}
    if values.get("use_sliding_window") is False:
        values["sliding_window"] = None
    heads = integer(values, "num_attention_heads")
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = heads
    if values.get("head_dim") is None:
        values["head_dim"] = integer(values, "hidden_size") // max(heads, 1)
    return values


def _refuse_unsupported(entry: Entry, family: Family) -> None:
    names, activation = family.activation
    read = {*family.keys, *family.defaults, *family.experts_keys}
    switched_off = {key: value for key, value in _SWITCHED_OFF.items() if key not in read}
    for key, harmless in {**dict.fromkeys(names, activation), **switched_off}.items():
        value = entry.get(key)
        if value is not None and value != harmless and value != [] and value != {}:
            limit = "none" if harmless is None else repr(harmless)
            raise ModelError(
                f"unsupported model feature {key}", got=repr(value), limit=limit, remedy=ANOTHER_MODEL
            )


def _rope_entries(values: Entry, family: Family) -> tuple[Entry, Entry | None]:
    """Return how blocks rotate, and how local blocks do where a family has them rotate otherwise."""
    given = values.get("rope_scaling") or values.get("rope_parameters") or {}
    by_type = any(kind in given for kind in _LAYER_TYPES)
    whole = (given.get(FULL_ATTENTION) or {}) if by_type else given
    theta = {"rope_theta": values["rope_theta"]}
    if LOCAL_THETA not in family.defaults:
        if by_type:
            raise ModelError("unsupported rope_parameters by type of layer", got=sorted(given))
        return theta | whole, None
    local = {"rope_theta": values[LOCAL_THETA], **((by_type and given.get(SLIDING_ATTENTION)) or {})}
    if read_rope_scaling(local) is not None:
        raise ModelError(
            f"unsupported rope scaling of {SLIDING_ATTENTION} layers", got=dict(local), limit="none"
        )
    return theta | whole, local


def _pattern(values: Entry, family: Family, local_theta: float | None) -> tuple[LayerKind, ...]:
    num_layers = integer(values, "num_hidden_layers")
    if num_layers > _MAX_LAYERS:
        raise ModelError("too many layers", got=num_layers, limit=_MAX_LAYERS)
    is_local = family.is_local or (lambda values, layer: False)
    assumed = [
        SLIDING_ATTENTION if is_local(values, layer) else FULL_ATTENTION for layer in range(num_layers)
    ]
    types = values.get("layer_types") or assumed
    wrong = sorted({str(kind) for kind in types} - set(_LAYER_TYPES))
    if wrong or len(types) != num_layers:
        raise ModelError(
            f"model configuration needs a layer type for each of its {num_layers} layers",
            got=f"{len(types)}: {', '.join(wrong or _LAYER_TYPES)}",
            limit=", ".join(_LAYER_TYPES),
            remedy=ANOTHER_MODEL,
        )
    if not family.has_layer_types and list(types) != assumed:
        raise ModelError("unsupported model feature layer_types", got=types, remedy=ANOTHER_MODEL)
    local = LayerKind()
    if SLIDING_ATTENTION in types:
        local = LayerKind(integer(values, "sliding_window"), local_theta)
    return shortest_pattern([local if kind == SLIDING_ATTENTION else LayerKind() for kind in types])


def _layer_type(kind: LayerKind) -> str:
    return FULL_ATTENTION if kind.window is None else SLIDING_ATTENTION
