"""`forebay store compact`: give the free pages of a run's store back to the disk."""

from __future__ import annotations

import typer

from forebay.cli.roles import RunPath
from forebay.cli.runs import join_run
from forebay.cli.store_summary import format_bytes
from forebay.errors import ConfigError


def compact(run: RunPath) -> None:
    """Write the store's file anew without its free pages; the run must not be going on.

    Space of consumed work is used again by itself: this is for a store that was once much fuller. It needs
    room for the new file beside the old one. Stopped at any moment, it leaves the store as it was, or done.

    Example:
        forebay store compact runs/calculator
    """
    # lmdb is imported only here: the other commands of the group start without it.
    from forebay.store.compaction import compact_store

    joined = join_run(run)
    settings = joined.store_settings
    if settings.engine != "lmdb" or settings.path is None:
        raise ConfigError(
            "only an lmdb store has a file to compact",
            got=f"store.engine={settings.engine}",
            remedy="A Redis server rewrites its own: redis-cli BGREWRITEAOF.",
        )
    done = compact_store(settings.path, joined.run_id)
    typer.echo(
        f"{settings.path}: {format_bytes(done.before_bytes)} before, {format_bytes(done.after_bytes)} now"
    )
