"""From the setting to what holds the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

from forebay.errors import ConfigError
from forebay.learner.bucket_client import BucketClient
from forebay.learner.checkpoint_bucket import BucketShelf
from forebay.learner.checkpoint_directory import DirectoryShelf
from forebay.learner.checkpoint_shelf import Shelf
from forebay.learner.settings import LearnerSettings, is_bucket
from forebay.telemetry.files import require_place

_CHECK_RETRY_S = 5.0


def open_shelf(settings: LearnerSettings, directory: Path, run_id: str) -> Shelf:
    """Return what holds the checkpoints of a run; nothing is made, no bucket is asked.

    Args:
        settings: Say where.
        directory: Where they lie if the settings do not say.
        run_id: Keeps runs apart that share a place.

    Raises:
        ConfigError: It is a bucket, and the package that reaches it is not installed.
    """
    path = settings.checkpoint_path
    if path is None:
        return DirectoryShelf(directory, fsync=True)
    if is_bucket(path):
        url = f"{path.rstrip('/')}/{run_id}"
        return BucketShelf(BucketClient(url, patience_s=settings.checkpoint_timeout_s))
    return DirectoryShelf(Path(path) / run_id, fsync=True)


def check_place(settings: LearnerSettings) -> None:
    """See that a place for checkpoints takes what a run does to it; nothing stays in it.

    Raises:
        ConfigError: A bucket refuses, or nothing can be written below a directory; the message says what.
        BucketError: A bucket cannot be reached.
    """
    path = settings.checkpoint_path
    if path is None:
        return
    if is_bucket(path):
        BucketClient(path.rstrip("/"), patience_s=0.0, retry_s=_CHECK_RETRY_S).check()
        return
    try:
        require_place(Path(path) / "RUN_ID")
    except ConfigError as error:
        raise ConfigError(
            "nothing can be written below learner.checkpoint_path",
            got=error.got or path,
            remedy="Name a directory that you may write to.",
        ) from None
