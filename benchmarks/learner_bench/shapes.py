"""Which models and which rows are measured."""

from __future__ import annotations

from typing import Final, NamedTuple

from forebay.batching.packing import Bucket
from forebay.models.config import ModelConfig

# Heads of 64, and a feed-forward layer of 8 / 3 of the width, as in the family of SmolLM2.
MODELS: Final = {
    "1M": ModelConfig(
        vocab_size=1024,
        num_real_tokens=1024,
        hidden_size=128,
        intermediate_size=352,
        num_layers=5,
        num_heads=2,
        num_kv_heads=1,
        head_size=64,
        max_position=8192,
    ),
    "20M": ModelConfig(
        vocab_size=8192,
        num_real_tokens=8192,
        hidden_size=384,
        intermediate_size=1024,
        num_layers=11,
        num_heads=6,
        num_kv_heads=2,
        head_size=64,
        max_position=8192,
    ),
    # SmolLM2-135M.
    "135M": ModelConfig(
        vocab_size=49_152,
        num_real_tokens=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        max_position=8192,
        rope_theta=100_000.0,
        bos_id=1,
        eos_ids=(2,),
    ),
    # For the tests of the benchmark itself.
    "tiny": ModelConfig(
        vocab_size=64,
        num_real_tokens=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_size=16,
        max_position=512,
    ),
}


class Case(NamedTuple):
    """A model, and one row that it is trained on.

    Attributes:
        model: A key of `MODELS`.
        segments: Lengths of the sequences in the row, tokens; it is full.
        rounds: Steps that are timed, after the first.
    """

    model: str
    segments: tuple[int, ...]
    rounds: int

    @property
    def bucket(self) -> Bucket:
        """The shape of its micro-batch."""
        return Bucket(1, sum(self.segments))
