"""A run whose store holds a group in each state, for the tests of the commands that look into it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from forebay.cli.runs import Run, own_run
from forebay.config import load_config
from forebay.store import JournalEntry, Slot
from forebay.trajectory import PolicyVersion, Trajectory
from tests.unit.store.builders import FIRST, make_spec, make_trajectory, oldest_first

WORD = "12+3="


def make_run(directory: Path, *overrides: str, num_groups: int = 0) -> tuple[Path, Run]:
    """Make a run; its store holds g0 recorded, g1 taken, g2 settled, g3 half done, g4 begun, g5 of `sums`."""
    with own_run(load_config(None, [f"run.directory={directory}", "run.name=x", *overrides]))[0]:
        pass
    from forebay.cli.runs import join_run

    run = join_run(directory / "x")
    store = run.open_store()
    store.rewind(0)
    specs = [make_spec(i, environment="sums" if i == 5 else "calculator") for i in range(6 + num_groups)]
    store.dispatch(specs, incarnation=0)
    slots = store.claim(9, ttl_s=1e6, actor="actor-7", version=FIRST)
    for slot in slots[:7]:
        store.put(spoken(run, slot), slot)
    store.fail(slots[7], reason="environment")
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    store.record(
        JournalEntry(step=1, now=FIRST, forks=(), group_ids=("g0",), digest="d"),
        incarnation=0,
    )
    store.publish(PolicyVersion(0, 1), incarnation=0)
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    store.close()
    return directory / "x", run


def spoken(run: Run, slot: Slot) -> Trajectory:
    """Return a trajectory whose tokens are text of the run's tokenizer."""
    trajectory = make_trajectory(slot, run_id=run.run_id, num_tokens=2 * len(WORD))
    tokens = np.tile(run.chat.encode(WORD), 2).astype(np.int32)
    sequence = msgspec.structs.replace(trajectory.sequences[0], tokens=tokens)
    return msgspec.structs.replace(
        trajectory, sequences=(sequence,), metrics={"branches": 1.0, "depth": 2.5}, started_s=1.5
    )
