from __future__ import annotations

import itertools
import threading
from pathlib import Path

import msgspec
import pytest

from forebay.learner.batch_values import TrainedTrajectory
from forebay.learner.samples import SampleKeeper, choose_samples, sample_files, superfluous, version_of
from forebay.trajectory import PolicyVersion
from forebay.wire import decode
from tests.unit.learner.small_run import act, make_dispatcher, make_feed, open_at


@pytest.fixture
def batch():
    store = open_at()
    store.rewind(0)
    make_dispatcher(store, 0).top_up()
    act(store)
    return make_feed(store, 0).next(0, threading.Event())


def names(files: list[Path]) -> list[int]:
    return [version_of(path) for path in files]


def test_every_other_batch_leaves_its_lowest_and_highest_reward(tmp_path, batch) -> None:
    keeper = SampleKeeper(tmp_path / "samples", every=2, count=2)
    for version in (7, 8):
        keeper.add(batch, PolicyVersion(0, version))
    keeper.close()
    files = sample_files(tmp_path / "samples")
    assert names(files) == [7, 7]
    kept = {
        path.name.removeprefix("00000007-").removesuffix(".frame"): decode(path.read_bytes())
        for path in files
    }
    rewards = {t.trajectory_id: t.reward for group in batch.groups for t in group.trajectories}
    assert {name: trajectory.reward for name, trajectory in kept.items()}.items() <= rewards.items()
    assert sorted(t.reward for t in kept.values()) == [min(rewards.values()), max(rewards.values())]


def test_nothing_is_kept_if_nothing_is_wanted(tmp_path, batch) -> None:
    keeper = SampleKeeper(tmp_path / "samples", every=0, count=2)
    keeper.add(batch, PolicyVersion(0, 1))
    keeper.close()
    assert not (tmp_path / "samples").exists()


def test_a_disk_that_fails_is_counted_and_ends_nothing(tmp_path, batch, caplog) -> None:
    (tmp_path / "samples").write_text("a file where the directory should be")
    keeper = SampleKeeper(tmp_path / "samples", every=1, count=1)
    for version in (1, 2):
        keeper.add(batch, PolicyVersion(0, version))
        keeper._running.result(timeout=10.0)
    keeper.close()
    assert keeper.num_failed == 2
    assert len(caplog.records) == 1


def test_untrained_trajectories_are_not_chosen(batch) -> None:
    one, two, *_ = [t for group in batch.groups for t in group.trajectories]
    low, high = msgspec.structs.replace(one, reward=0.0), msgspec.structs.replace(two, reward=5.0)
    trained = [TrainedTrajectory(high, 3), TrainedTrajectory(low, 0), TrainedTrajectory(low, 1)]
    assert choose_samples(trained, 2) == [low, high]
    assert choose_samples(trained, 1) == [high]
    assert choose_samples([TrainedTrajectory(low, 0)], 2) == []


def test_a_long_run_stays_covered_from_its_beginning_to_its_end() -> None:
    files: list[Path] = []
    for version in range(1, 1001):
        files += [Path(f"{version:08d}-g{version}.{member}.0.frame") for member in (0, 1)]
        gone = superfluous(files, 48)
        files = [path for path in files if path not in gone]
        assert len(files) <= 48
    versions = sorted(set(names(files)))
    assert (versions[0], versions[-1], len(versions)) == (1, 1000, 24)
    gaps = [later - earlier for earlier, later in itertools.pairwise(versions)]
    assert max(gaps) <= 2 * 1000 / 24 + 1
    assert max(gaps) <= 4 * min(gaps[:-1])
