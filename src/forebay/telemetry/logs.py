"""Logging: one format for every process, to stderr and to the run's `logs/ROLE.log`."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from pathlib import Path

from forebay.trajectory import check_name

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s {role} %(name)s: %(message)s"
_DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"
_MAX_FILE_BYTES = 32 * 2**20
_NUM_OLD_FILES = 2


def setup_logging(role: str, directory: Path | None = None, *, level: int = logging.INFO) -> None:
    """Send what forebay logs to stderr and to a file; earlier handlers of the root logger are replaced.

    Args:
        role: Name of the process, such as `learner` or `actor-0`; part of each line and the file's name.
        directory: Where `ROLE.log` is appended to and rotated at 32 MiB; None for stderr only.
        level: Least level of forebay's own records; other packages are heard from WARNING on.
    """
    check_name(role, "role")
    formatter = logging.Formatter(_FORMAT.format(role=role), _DATE_FORMAT)
    formatter.converter = time.gmtime
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        handlers.append(
            logging.handlers.RotatingFileHandler(
                directory / f"{role}.log",
                maxBytes=_MAX_FILE_BYTES,
                backupCount=_NUM_OLD_FILES,
                encoding="utf-8",
            )
        )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("forebay").setLevel(level)
