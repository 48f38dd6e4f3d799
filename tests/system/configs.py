"""Settings of the smallest run, shared so that its programs are compiled once and cached for all tests."""

from __future__ import annotations

_SECTIONS = {
    "model": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "max_position": 64,
    },
    "batching": {"groups": 2, "group_size": 2, "max_length": 32, "rows": 2, "max_programs": 1},
    "generator": {"port": 0, "context": 32, "slots": 4, "prefill_chunks": [16], "parked_episodes": 8},
    "actors": {"episodes_per_process": 8},
}
# Examples of environments say more than 32 tokens; what else is compiled must be the same for all of them.
_LONGER = {
    "model": {**_SECTIONS["model"], "max_position": 160},
    "batching": {
        "groups": 4,
        "group_size": 4,
        "max_length": 160,
        "rows": 2,
        "row_length": 320,
        "max_programs": 1,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 5},
    "objective": {"entropy_coef": 0.01},
    "learner": {"steps": 2, "eval_every": 0},
    "generator": {"context": 160, "slots": 16, "prefill_chunks": [16], "decode_block": 1},
    "actors": {"episodes_per_process": 16},
}

SMALL_TOML = "\n".join(
    f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
    for section, settings in _SECTIONS.items()
)
"""Sections of a configuration: everything but run, environment and learner."""

SHORT = tuple(
    f"{section}.{name}={value}" for section, settings in _LONGER.items() for name, value in settings.items()
)
"""Overrides that cut an example down to two steps of a tiny model."""
