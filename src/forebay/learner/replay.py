"""Re-trains what the journal says was consumed after the checkpoint, from the stored frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from forebay.batching.updates import updates_digest
from forebay.learner.feed import JournaledBatch, Packer
from forebay.store.protocol import JournalEntry, Store
from forebay.trajectory import PolicyVersion

logger = logging.getLogger(__name__)


def replay(
    store: Store,
    journal: Iterable[JournalEntry],
    incarnation: int,
    pack: Packer,
    train: Callable[[JournaledBatch], None],
    published_digest: Callable[[PolicyVersion], str | None],
    current_digest: Callable[[], str],
) -> int:
    """Train the journal's batches again, in order.

    A batch is packed as it was, from the same groups at the same version. Where the weights that it makes again are
    those that were published, bit for bit, the fork moves forward to them: tokens sampled by them keep their version.
    If a batch cannot be made again exactly, the rest of the journal is given back to be taken anew.

    Args:
        store: Holds the frames.
        journal: Entries after the checkpoint, in order.
        incarnation: The resuming learner's.
        pack: Makes the updates of a batch.
        train: Trains one batch.
        published_digest: Digest of the weights published as a version, or None if they are gone.
        current_digest: Digest of the learner's weights now.

    Returns:
        Number of batches trained again.
    """
    replayed = 0
    for entry in journal:
        groups = tuple(store.read_group(group_id) for group_id in entry.group_ids)
        updates = pack(groups, entry.now, entry.forks)
        if updates_digest(updates) != entry.digest:
            logger.warning(
                "step %d of the journal cannot be made again exactly (packing settings changed?): its groups and the "
                "later ones are taken anew",
                entry.step,
            )
            store.truncate_journal(entry.step - len(updates), incarnation=incarnation)
            return replayed
        store.record(entry, incarnation=incarnation)
        train(JournaledBatch(entry, updates, groups))
        replayed += 1
        published = published_digest(PolicyVersion(entry.now.incarnation, entry.step))
        if published is not None and published == current_digest():
            store.advance_fork(entry.step, incarnation=incarnation)
    return replayed
