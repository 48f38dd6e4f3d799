"""A few trained trajectories of a run, kept so that a person can read how the agent changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from forebay.learner.batch_values import TrainedTrajectory, trained_trajectories
from forebay.learner.feed import JournaledBatch
from forebay.telemetry.files import write_atomically
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.wire import encode

MAX_FILES: Final = 48
_SUFFIX = ".frame"
logger = logging.getLogger(__name__)


class SampleKeeper:
    """Writes trained trajectories in the background, each as a wire frame `VERSION-TRAJECTORY.frame`.

    Consumes: trained batches. Waits for: nothing; while one batch is being written, others are passed over.
    Produces: at most `max_files` files that cover the whole run. A disk that fails costs samples, not the
    run: that is counted, and reported once.

    Args:
        directory: Where files go; made when the first one is written.
        every: Batches from one that is sampled to the next; 0 for none.
        count: Trajectories of a sampled batch.
        max_files: Most files kept.
        on_start: Runs first in the background thread.

    Attributes:
        num_failed: Batches whose samples could not be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every: int,
        count: int,
        max_files: int = MAX_FILES,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._every = every
        self._count = count
        self._max_files = max_files
        self._batches = 0
        self.num_failed = 0
        self._executor = ThreadPoolExecutor(1, "samples", initializer=on_start)
        self._running: Future[None] | None = None

    def add(self, batch: JournaledBatch, version: PolicyVersion, *_: object) -> None:
        """Keep some of a batch if it is its turn; returns at once.

        Args:
            batch: What was trained.
            version: The version that it made.
        """
        self._batches += 1
        if not self._every or (self._batches - 1) % self._every:
            return
        if self._running is None or self._running.done():
            chosen = choose_samples(trained_trajectories(batch), self._count)
            self._running = self._executor.submit(self._write, version.version, chosen)

    def close(self) -> None:
        """Finish what is being written, then end the thread."""
        self._executor.shutdown(wait=True)

    def _write(self, version: int, chosen: Sequence[Trajectory]) -> None:
        try:
            for trajectory in chosen:
                name = f"{version:08d}-{trajectory.trajectory_id}{_SUFFIX}"
                write_atomically(self._directory / name, encode(trajectory))
            for path in superfluous(sample_files(self._directory), self._max_files):
                path.unlink(missing_ok=True)
        except OSError as error:
            self.num_failed += 1
            if self.num_failed == 1:
                logger.warning("cannot keep sampled trajectories: %s", error)


def choose_samples(trained: Sequence[TrainedTrajectory], count: int) -> list[Trajectory]:
    """Return `count` trajectories of which something is trained, spread evenly from lowest to highest reward.

    Example:
        >>> choose_samples([], 2)
        []
    """
    fresh = [trajectory for trajectory, fresh_tokens in trained if fresh_tokens]
    ranked = sorted(fresh, key=lambda t: 0.0 if t.reward is None else t.reward)
    if count >= len(ranked):
        return ranked
    if count == 1:
        return [ranked[-1]]
    return [ranked[i * (len(ranked) - 1) // (count - 1)] for i in range(count)]


def sample_files(directory: Path) -> list[Path]:
    """Return the sampled trajectories of a run, the earliest version first."""
    return sorted(directory.glob(f"[0-9]*-*{_SUFFIX}"))


def version_of(path: Path) -> int:
    """Return the version that the batch of a sampled trajectory made."""
    return int(path.name.partition("-")[0])


def superfluous(files: Sequence[Path], max_files: int) -> list[Path]:
    """Return the files to remove so that at most `max_files` stay, and those still cover the whole run.

    Time and again, the version whose neighbors are closest to one another goes, the earliest of equals; the
    first and the last stay. So the spacing doubles from the beginning of the run on.

    Args:
        files: Sampled trajectories.
        max_files: Most that may stay.
    """
    by_version: dict[int, list[Path]] = {}
    for path in files:
        by_version.setdefault(version_of(path), []).append(path)
    versions = sorted(by_version)
    gone: list[Path] = []
    while len(files) - len(gone) > max_files and len(versions) > 2:
        closest = min(range(1, len(versions) - 1), key=lambda i: versions[i + 1] - versions[i - 1])
        gone += by_version[versions.pop(closest)]
    return gone
