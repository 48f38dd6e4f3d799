"""Admission: how many groups may be dispatched, and rhythms of updating that could never work."""

from __future__ import annotations

from forebay.errors import ConfigError
from forebay.staleness.settings import StalenessSettings, credit_batches


def dispatch_allowance(
    settings: StalenessSettings,
    groups_per_batch: int,
    num_outstanding: int,
    groups_left: int | None = None,
    *,
    updates_per_batch: int = 1,
) -> int:
    """Return how many groups may be dispatched now.

    Computed from what is outstanding, so that a restart cannot grant credit twice.

    Args:
        settings: The staleness rule.
        groups_per_batch: Groups that one optimizer batch takes.
        num_outstanding: Groups dispatched whose step is not yet published.
        groups_left: Groups the run still has to consume, outstanding ones included; None for an endless run.
        updates_per_batch: Optimizer updates made on one batch.

    Example:
        >>> dispatch_allowance(StalenessSettings(max_staleness=4), 32, 0)
        160
    """
    limit = credit_batches(settings, updates_per_batch) * groups_per_batch
    if groups_left is not None:
        limit = min(limit, groups_left)
    return max(0, limit - num_outstanding)


def check_updates_per_batch(
    settings: StalenessSettings, updates_per_batch: int, *, publish_every: int = 1
) -> None:
    """Refuse rhythms of updating and publishing whose tokens would always be too stale, or never come.

    The u-th update of a batch differentiates a version u steps newer than the first; a batch taken perfectly
    fresh therefore reaches staleness `updates_per_batch - 1`. Credit is freed at publication, so that the
    batches between two publications must all be in flight at once.

    Args:
        settings: The staleness rule.
        updates_per_batch: Optimizer updates made on one batch: minibatches times epochs.
        publish_every: Batches between published versions.

    Raises:
        ConfigError: The last update could never train a token, the credit's youngest batch would always be
            too old, or the learner would wait for groups that it has no credit to dispatch.
    """
    oldest = updates_per_batch - 1
    if oldest > settings.max_staleness:
        raise ConfigError(
            f"{updates_per_batch} optimizer updates per batch reach staleness {oldest}",
            got=f"max_staleness={settings.max_staleness}",
            limit=f"max_staleness >= {oldest}",
            remedy="Lower batching.minibatches or batching.epochs, or raise staleness.max_staleness.",
        )
    in_flight = credit_batches(settings, updates_per_batch)
    oldest = in_flight * updates_per_batch - 1
    if settings.on_stale != "mask" and oldest > settings.max_staleness:
        raise ConfigError(
            f"{in_flight} batches in flight of {updates_per_batch} updates each reach staleness {oldest}",
            got=f"max_staleness={settings.max_staleness}",
            limit=f"max_staleness >= {oldest}",
            remedy="Lower staleness.credit or raise staleness.max_staleness.",
        )
    if publish_every > in_flight:
        raise ConfigError(
            "credit is freed at publication, so the learner could never fill the batches between two",
            got=f"publish_every={publish_every}",
            limit=f"{in_flight} batches in flight",
            remedy="Lower learner.publish_every or raise staleness.max_staleness.",
        )
