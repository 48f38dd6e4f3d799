"""How much is measured."""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.learner_bench.shapes import Case

SECTIONS: Final = ("utilization", "torch", "packing", "loop")


# Settings of the step, defaults otherwise.
COMPUTE: Final = {"remat": "elementwise"}


class Gain(NamedTuple):
    """Sequences that are packed and padded.

    Attributes:
        model: A key of `MODELS`.
        lengths: Of the sequences, tokens.
        row_tokens: Of a row.
        rounds: Rounds that count.
    """

    model: str
    lengths: tuple[int, ...]
    row_tokens: int
    rounds: int


class LoopCase(NamedTuple):
    """A run whose loop is measured.

    Attributes:
        model: A key of `MODELS`.
        groups: Groups of a batch, of four episodes each.
        episode_tokens: Shortest and longest episode.
        row_tokens: Of a packed row.
        batches: Batches of a round.
        rounds: Rounds that count; one comes before them.
        checkpoint_every: Batches from one checkpoint to the next.
    """

    model: str
    groups: int
    episode_tokens: tuple[int, int]
    row_tokens: int
    batches: int
    rounds: int
    checkpoint_every: int

    @property
    def steps(self) -> int:
        """Batches of the run."""
        return self.batches * (self.rounds + 1)


class Effort(NamedTuple):
    """What is measured.

    Attributes:
        steps: Steps alone.
        beside_torch: Steps beside those of torch, and alone.
        gain: Packed and padded rows.
        loops: Whole learners.
        peak_s: How long each matrix product is repeated in one look.
    """

    steps: tuple[Case, ...]
    beside_torch: tuple[Case, ...]
    gain: Gain
    loops: tuple[LoopCase, ...]
    peak_s: float


WHOLE: Final = (1024,)
PACKED: Final = (1200, 900, 700, 500, 350, 250, 150, 46)
# Two rows of 1,024 tokens if packed, six if padded.
MIXED: Final = (960, 600, 250, 90, 60, 40)

EFFORTS: Final = {
    "full": Effort(
        steps=(
            Case("1M", (256,), 15),
            Case("1M", WHOLE, 11),
            Case("1M", PACKED, 7),
            Case("20M", (256,), 9),
            Case("20M", WHOLE, 5),
            Case("20M", PACKED, 2),
            Case("135M", (256,), 4),
            Case("135M", WHOLE, 3),
            Case("135M", PACKED, 1),
        ),
        beside_torch=(Case("135M", WHOLE, 3),),
        gain=Gain("20M", MIXED, 1024, 2),
        loops=(
            LoopCase("1M", 8, (100, 600), 1024, batches=4, rounds=8, checkpoint_every=5),
            LoopCase("135M", 1, (180, 256), 1024, batches=1, rounds=2, checkpoint_every=2),
        ),
        peak_s=0.1,
    ),
    "quick": Effort(
        steps=(Case("1M", (256,), 5), Case("1M", WHOLE, 3), Case("20M", (256,), 3)),
        beside_torch=(Case("1M", WHOLE, 5),),
        gain=Gain("1M", MIXED, 1024, 3),
        loops=(LoopCase("1M", 4, (100, 600), 1024, batches=3, rounds=3, checkpoint_every=4),),
        peak_s=0.03,
    ),
    # For the test of this benchmark.
    "test": Effort(
        steps=(Case("tiny", (24, 8), 2),),
        beside_torch=(Case("tiny", (32,), 1),),
        gain=Gain("tiny", (20, 10, 6), 32, 1),
        loops=(LoopCase("tiny", 1, (8, 16), 64, batches=1, rounds=2, checkpoint_every=2),),
        peak_s=0.0,
    ),
}
