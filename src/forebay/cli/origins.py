"""What a run began with and must go on with: kept in its directory as a source and a hash."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forebay.errors import ConfigError
from forebay.telemetry.files import write_atomically


class Origin(msgspec.Struct, frozen=True):
    """What a run began with.

    Args:
        source: Where it came from.
        digest: xxh3-128 of its tensors; equal for bit-identical ones.
    """

    source: str
    digest: str


def check_origin(record: Path, now: Origin, subject: str) -> None:
    """Refuse another one than a run began with; note it if the run begins now.

    Args:
        record: The file in the run directory.
        now: What there is now.
        subject: What it is, for messages: `the reference policy`.

    Raises:
        ConfigError: It has changed, or the record is damaged.
    """
    if not record.exists():
        write_atomically(record, msgspec.json.format(msgspec.json.encode(now), indent=1))
        return
    try:
        before = msgspec.json.decode(record.read_bytes(), type=Origin)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{record} is damaged: {error}",
            remedy=f"Remove it if {subject} is the one that the run was started with.",
        ) from error
    if before != now:
        raise ConfigError(
            f"{subject} is not the one that {record.parent} was started with",
            got=f"{now.source}, hash {now.digest[:8]}",
            limit=f"{before.source}, hash {before.digest[:8]}",
            remedy="Put that model back, or start another run.name.",
        )
