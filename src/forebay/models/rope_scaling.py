"""How rotary frequencies are stretched beyond the context of the pretraining: the record, read and written.

A kind of stretch that is not computed is refused by name: ignoring it gives wrong numbers without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from forebay.errors import ModelError

RopeKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model was pretrained on.

    Args:
        kind: `linear` divides every frequency by `factor`; `llama3` and `yarn` divide only the slow ones.
        factor: The stretch, >= 1.
        low_freq_factor: `llama3`: wavelengths above `original_max_position / low_freq_factor` are divided
            whole.
        high_freq_factor: `llama3`: wavelengths below `original_max_position / high_freq_factor` are kept.
        original_max_position: `llama3`, `yarn`: the context of the pretraining, tokens.
        beta_fast: `yarn`: channels that turn more often than this within that context are kept.
        beta_slow: `yarn`: channels that turn less often than this are divided whole.
        attention_factor: `yarn`: what cosine and sine are multiplied by; None: `0.1 ln(factor) + 1`.
    """

    kind: RopeKind
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def to_hf(self) -> dict[str, Any]:
        """Return the `rope_scaling` entry of a Hugging Face configuration."""
        keys = (*_NEEDED[self.kind], *_OPTIONAL[self.kind])
        values = {key: getattr(self, _field(key)) for key in keys}
        # An assumed factor is left out: vLLM knows it by another name.
        return {"rope_type": self.kind} | {key: value for key, value in values.items() if value is not None}


def read_rope_scaling(entry: Mapping[str, Any]) -> RopeScaling | None:
    """Read the `rope_scaling` (or `rope_parameters`) entry of a Hugging Face configuration.

    Args:
        entry: The entry; empty where there is none.

    Returns:
        The stretch, or None where there is none.

    Raises:
        ModelError: Another kind of stretch, a missing number, or a key that changes what is computed.
    """
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind != "default" and kind not in _NEEDED:
        raise ModelError(
            "unsupported rope_scaling type",
            got=repr(kind),
            limit=", ".join(map(repr, ("default", *get_args(RopeKind)))),
            remedy="Choose a model without it: other frequencies would give other numbers.",
        )
    for key, harmless in _SWITCHED_OFF.items():
        if entry.get(key, harmless) not in (harmless, None):
            raise ModelError(f"unsupported rope_scaling {key}", got=repr(entry[key]), limit=repr(harmless))
    if kind == "default":
        return None
    given = {key: entry[key] for key in _OPTIONAL[kind] if entry.get(key) is not None}
    given |= {key: entry.get(key) for key in _NEEDED[kind]}
    wrong = [key for key, value in given.items() if not isinstance(value, int | float)]
    if wrong:
        raise ModelError(
            f"rope_scaling of type {kind} needs a number for {', '.join(wrong)}", got=dict(entry)
        )
    values: dict[str, Any] = {_field(key): float(value) for key, value in given.items()}
    if _ORIGINAL in given:
        values[_field(_ORIGINAL)] = int(given[_ORIGINAL])
    return RopeScaling(kind, **values)


_ORIGINAL: Final = "original_max_position_embeddings"
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", _ORIGINAL),
}
_OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "linear": (),
    "llama3": (),
    "yarn": ("beta_fast", "beta_slow", "attention_factor"),
}
# Keys of stretches that are not computed, and the value that switches each off.
_SWITCHED_OFF: Final[dict[str, object]] = {
    "partial_rotary_factor": 1.0,
    "truncate": True,
    "mscale": None,
    "mscale_all_dim": None,
    "short_factor": None,
    "long_factor": None,
    "mrope_section": None,
}


def _field(key: str) -> str:
    return "original_max_position" if key == _ORIGINAL else key
