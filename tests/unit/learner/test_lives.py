from __future__ import annotations

from contextlib import ExitStack

import msgspec
import pytest

from forebay.batching.prefetch import Prefetcher
from forebay.clock import ManualClock
from forebay.learner.batch_values import TrainedTrajectory
from forebay.learner.feed import JournaledBatch
from forebay.learner.lives import Lives, look_inside
from forebay.store.protocol import JournalEntry, TakenGroup
from forebay.telemetry.life_log import LifeLog, read_lives
from forebay.telemetry.little import Flow
from forebay.telemetry.spans import TimeStrip
from tests.unit.learner.small_run import answer, make_dispatcher, open_at
from tests.unit.store.builders import FIRST, make_spec, oldest_first
from tests.unit.telemetry.lives import BATCH, STEP, trajectory


def batch(*members, dispatched_s: float | None = 1000.0, stamps=BATCH) -> JournaledBatch:
    group = TakenGroup(spec=make_spec(0), trajectories=members, dispatched_s=dispatched_s)
    entry = JournalEntry(step=1, now=FIRST, forks=(), group_ids=("g0",), digest="")
    return JournaledBatch(entry, (), (group,), stamps=stamps)


def two() -> tuple:
    """Two members; the slower one settles the group at 1040."""
    first = trajectory(trajectory_id="a", environment="web")
    return first, msgspec.structs.replace(
        first, trajectory_id="b", environment="bash", finished_s=1040.0, attempt=2
    )


def at_end_of_step() -> ManualClock:
    """A clock whose wall and monotonic times are both those of the end of the step."""
    return ManualClock(STEP.ended_wall_s)


@pytest.fixture
def open_log(tmp_path):
    with ExitStack() as stack:
        yield lambda clock: stack.enter_context(LifeLog(tmp_path / "life.jsonl", clock))


@pytest.fixture
def stamped():
    # A manual clock has one time for both: the stamps of the batch are moved onto it.
    return BATCH._replace(taken_s=1046.0, recorded_s=1046.5)


def test_a_batch_by_hand(tmp_path, stamped, open_log) -> None:
    clock = ManualClock(1040.0)
    log = open_log(clock)
    lives = Lives(log, clock)
    lives.watch(lambda: {"buffer": Flow(0, 0.0, 3, 6.0, 14.0)})
    clock.advance(12.5)
    members = two()
    weighed = [TrainedTrajectory(members[0], 3), TrainedTrajectory(members[1], 1)]
    values = lives.add(batch(*members, stamps=stamped), 1, weighed, 4.0)
    assert values == pytest.approx({
        "life.admission_s": (3 * 3.5 + 0.5) / 4,
        "life.retries_s": 3.0 / 4,
        "life.reset_s": 3.0,
        "life.generator_queue_s": 1.5,
        "life.generating_s": 3.5,
        "life.environment_s": 18.0,
        "life.other_s": (3 * 0.5 + 10.5) / 4,
        "life.group_s": 3 * 10.0 / 4,
        "life.buffer_s": 6.0,
        "life.packing_s": 0.5,
        "life.handover_s": 2.0,
        "life.training_s": 4.0,
        "life.residual_s": 0.0,
    }, abs=1e-9)  # fmt: skip
    assert sum(values.values()) == pytest.approx(52.5)
    table = read_lives(tmp_path / "life.jsonl")
    assert {name: (one.tokens, one.trajectories) for name, one in table.environments.items()} == {
        "web": (3, 1), "bash": (1, 1),
    }  # fmt: skip
    assert (table.wall_s, table.environments["bash"].stages["other"].token_s) == (12.5, 10.5)
    assert table.flows == {
        "store": Flow(1, 46.5),  # dispatched at 1000, in the journal at 1046.5
        "episodes": Flow(2, 0.5 + 26.5 + 0.5 + 36.5),
        "buffer": Flow(1, 6.0, 3, 6.0, 14.0),
        "packing": Flow(1, 0.5),
        "handover": Flow(1, 2.0),
        "training": Flow(1, 4.0),
    }


def test_a_batch_that_is_trained_again_has_lived_already(tmp_path, open_log) -> None:
    clock = at_end_of_step()
    log = open_log(clock)
    (member,) = two()[:1]
    again = batch(member, stamps=None)
    assert Lives(log, clock).add(again, 1, [TrainedTrajectory(member, 3)], 4.0) == {}
    assert read_lives(tmp_path / "life.jsonl") is None


def test_nothing_trained_has_no_life_but_its_trajectories_passed(tmp_path, stamped, open_log) -> None:
    clock = at_end_of_step()
    log = open_log(clock)
    (member,) = two()[:1]
    one = batch(member, dispatched_s=None, stamps=stamped)
    assert Lives(log, clock).add(one, 1, [TrainedTrajectory(member, 0)], 4.0) == {}
    table = read_lives(tmp_path / "life.jsonl")
    assert (table.whole.tokens, table.whole.trajectories) == (0, 1)
    assert (table.flows["store"], table.flows["episodes"].passed) == (Flow(), 1)


def test_a_restart_begins_the_time_of_the_next_line(tmp_path, stamped, open_log) -> None:
    clock = ManualClock(1000.0)
    log = open_log(clock)
    lives = Lives(log, clock)
    clock.advance(50.0)
    lives.restart()
    clock.advance(2.5)
    (member,) = two()[:1]
    lives.add(batch(member, stamps=stamped), 1, [TrainedTrajectory(member, 1)], 4.0)
    assert read_lives(tmp_path / "life.jsonl").wall_s == 2.5


def test_every_queue_is_counted_where_it_is_held() -> None:
    store = open_at()
    store.rewind(0)
    make_dispatcher(store, 0).top_up()
    strip = TimeStrip(ManualClock())
    prefetcher = Prefetcher[JournaledBatch | None](lambda *_: None, first=0, last=1, clock=ManualClock())
    look = look_inside(store.stats, prefetcher, strip)
    live = store.stats().open_groups
    assert look() == {
        "store": live, "episodes": 0, "buffer": 0, "packing": 0, "handover": 0, "training": 0.0,
    }  # fmt: skip
    slots = store.claim(3, ttl_s=60.0, actor="a", version=FIRST)
    assert look()["episodes"] == 3
    for slot in slots[:2]:
        store.put(answer(slot, FIRST), slot)
    assert (look()["episodes"], look()["buffer"], look()["store"]) == (1, 1, live)
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    with strip.span("computing"), strip.span("packing"):
        seen = look()
    assert (seen["buffer"], seen["packing"], seen["training"]) == (0, 1.0, 1.0)
