from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from forebay.batching.packing import Bucket
from forebay.errors import CheckpointError, NonFiniteError, WireError
from forebay.learner.bare import BareSpeed, full_rows
from forebay.learner.gang.batches import encode_batch
from forebay.learner.gang.following import Follower
from forebay.learner.gang.frames import Frame
from forebay.learner.gang.gathering import Gathering
from forebay.learner.gang.lead import ORDER, Leader
from forebay.learner.train_step import snapshot
from forebay.models.hf import to_hf_tensors
from forebay.trajectory import PolicyVersion
from forebay.weights.shard import digest_of
from tests.unit.learner import small_run
from tests.unit.learner.gang.gangs import Threads
from tests.unit.models import tiny

STEPS = 3
PATIENCE_S = 100.0


class Two:
    """A leading learner and one that follows it, both whole, as threads of one process."""

    def __init__(self, threads: Threads, pool: ThreadPoolExecutor) -> None:
        self.saved: list[PolicyVersion] = []
        self.published: dict[PolicyVersion, str] = {}
        abstract = small_run.programs().abstract_state.params
        self.lead = Leader(threads.gangs[0], abstract, PATIENCE_S)
        self.store = small_run.open_at()
        self.store.rewind(0)
        self.leading = small_run.make_learner(
            publish=self.publish,
            save=lambda state, version: self.lead.save(version.version),
            copy=self.lead.copy,
            checkpoint_every=2,
        )
        gathering = Gathering(threads.gangs[1], abstract)
        self.following = small_run.make_learner(
            save=lambda state, version: self.saved.append(version), copy=gathering.start
        )
        self.bare = BareSpeed()
        follower = Follower(threads.gangs[1], self.following, self.bare, PATIENCE_S)
        self.done: Future[None] = pool.submit(follower.follow)
        self.source = small_run.ScriptedSource(self.store, 0, 0, STEPS)

    def publish(self, version: PolicyVersion, copy) -> None:
        self.published[version] = digest_of(to_hf_tensors(self.lead.copied(copy), tiny.CONFIG))
        assert self.published[version] == small_run.digest(self.leading.state)
        self.store.publish(version, incarnation=0)

    def next(self):
        batch = self.source.next()
        self.lead.share(batch)
        self.lead.train(batch)
        return batch


def test_who_follows_trains_the_same_batches_to_the_same_bits() -> None:
    with ThreadPoolExecutor(1) as pool, Threads(2) as threads:
        two = Two(threads, pool)
        two.leading.run(two, STEPS, lambda: False)
        two.lead.end()
        two.done.result(PATIENCE_S)
        assert two.following.version == two.leading.version == PolicyVersion(0, STEPS)
        assert small_run.digest(two.following.state) == small_run.digest(two.leading.state)
        assert two.saved == [PolicyVersion(0, 2)]
        assert len(set(two.published.values())) == STEPS  # so that equality says something
        assert threads.ended == {}
        two.store.close()


def test_all_take_part_in_timing_the_step() -> None:
    with ThreadPoolExecutor(1) as pool, Threads(2) as threads:
        two = Two(threads, pool)
        bucket = Bucket(*small_run.LADDER[0])
        two.lead.calibrate({bucket: full_rows(bucket, 4)})
        two.lead.end()
        two.done.result(PATIENCE_S)
        assert two.bare._bucket_s.keys() == {bucket}
        two.store.close()


def test_a_batch_out_of_turn_and_a_failure_in_the_background_end_who_follows() -> None:
    def failed() -> None:
        raise CheckpointError("the disk is full")

    store = small_run.open_at()
    store.rewind(0)
    batch = small_run.ScriptedSource(store, 0, 0, STEPS).next()
    assert batch is not None
    for check, error in ((lambda: None, WireError), (failed, CheckpointError)):
        with Threads(2) as threads:
            follower = Follower(
                threads.gangs[1], small_run.make_learner(), BareSpeed(), PATIENCE_S, check=check
            )
            threads.gangs[0].tell(encode_batch(batch))
            threads.gangs[0].tell(Frame(ORDER, b'{"what": "train", "step": 2}'))
            with pytest.raises(error):
                follower.follow()
    store.close()


def test_a_failure_in_the_background_ends_who_waits_for_an_order() -> None:
    """Process 0 gives none while it waits for the very part that failed: of a run's last checkpoint."""

    def failed() -> None:
        raise CheckpointError("the disk is full")

    with Threads(2) as threads:
        follower = Follower(threads.gangs[1], small_run.make_learner(), BareSpeed(), PATIENCE_S, check=failed)
        with pytest.raises(CheckpointError):
            follower.follow()


def test_whoever_trains_what_is_not_finite_fails_alike() -> None:
    poisoned = small_run.make_learner(max_nonfinite_steps=1)
    spoiled = snapshot(poisoned.state.params)
    spoiled["embedding"][:] = np.nan
    poisoned.state = small_run.programs().init_state(spoiled)
    store = small_run.open_at()
    store.rewind(0)
    batch = small_run.ScriptedSource(store, 0, 0, STEPS).next()
    assert batch is not None
    with Threads(2) as threads:
        threads.gangs[0].tell(encode_batch(batch))
        threads.gangs[0].tell(Frame(ORDER, b'{"what": "train", "step": 1}'))
        with pytest.raises(NonFiniteError):
            Follower(threads.gangs[1], poisoned, BareSpeed(), PATIENCE_S).follow()
    store.close()
