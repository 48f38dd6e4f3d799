"""`forebay config ladder`: the batch shapes that suit the episodes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from forebay.batching.ladder import build_ladder, measured_ladder, sample_batches
from forebay.batching.packing import Bucket, plan_packing
from forebay.batching.settings import BatchingSettings
from forebay.cli.runs import join_run
from forebay.errors import ConfigError, StoreError
from forebay.store import StoreView

# Batches that shapes are chosen on, and as many others that they are judged on.
_NUM_BATCHES = 48
_MAX_GROUPS = 2000


class ChosenLadder(NamedTuple):
    """Shapes for the next run, beside those of this one.

    Args:
        groups: Groups whose lengths were measured.
        buckets: The shapes, (rows, length).
        fill: Mean fill of a batch with them.
        shapes_now: Shapes that the run has.
        fill_now: Mean fill of the same batches with those.
    """

    groups: int
    buckets: tuple[Bucket, ...]
    fill: float
    shapes_now: int
    fill_now: float


def choose_ladder(run: Path, max_programs: int | None) -> ChosenLadder:
    """Choose shapes on batches drawn from a run's store, and judge them on others.

    Args:
        run: The run's directory; it may be going on.
        max_programs: Most shapes; None for as many as the run may have.

    Raises:
        ConfigError: It is no run, or its store holds no trajectory.
    """
    joined = join_run(run)
    settings, mesh = joined.config.batching, joined.config.mesh
    multiples = mesh.row_multiple, mesh.length_multiple
    now = build_ladder(settings, *multiples)
    with joined.view_store() as view:
        groups = list(stored_lengths(view, settings))
    if not groups:
        raise ConfigError(
            "the store holds no trajectory to measure",
            got=str(run),
            remedy="Let the run train a few batches; learner.keep_consumed=true keeps all of them.",
        )
    if max_programs is not None:
        settings = settings.model_copy(update={"max_programs": max_programs})
    per_update = settings.groups // settings.minibatches
    chosen = measured_ladder(sample_batches(groups, per_update, _NUM_BATCHES, seed=0), settings, *multiples)
    others = sample_batches(groups, per_update, _NUM_BATCHES, seed=1)
    return ChosenLadder(len(groups), chosen, fill_of(others, chosen), len(now), fill_of(others, now))


def to_toml_lines(chosen: ChosenLadder) -> list[str]:
    """Return what is printed: a comment, and a section to paste."""
    return [
        f"# {chosen.groups} groups: fill {chosen.fill_now:.3f} with the run's {chosen.shapes_now} shapes,",
        f"# {chosen.fill:.3f} with these {len(chosen.buckets)}",
        "[batching]",
        f"buckets = {[list(bucket) for bucket in chosen.buckets]}",
    ]


def stored_lengths(view: StoreView, settings: BatchingSettings) -> Iterator[tuple[int, ...]]:
    """Yield, for each group that has arrived whole, the tokens of its sequences, as they would be packed.

    Args:
        view: The store; what cannot be read back is left out.
        settings: Says what becomes of longer sequences.
    """
    count = 0
    for group in view.groups():
        if group.state == "open" or count == _MAX_GROUPS:
            continue
        try:
            stored = view.read_group(group.group_id)
        except StoreError:
            continue
        lengths = [len(sequence.tokens) for one in stored.trajectories for sequence in one.sequences]
        if settings.oversize == "drop":
            lengths = [length for length in lengths if length <= settings.max_length]
        if lengths:
            count += 1
            yield tuple(min(length, settings.max_length) for length in lengths)


def fill_of(batches: list[list[int]], shapes: tuple[Bucket, ...]) -> float:
    """Return the mean fill of batches, each packed by itself."""
    return sum(sum(batch) / plan_packing(batch, shapes).num_slots for batch in batches) / len(batches)
