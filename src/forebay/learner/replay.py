"""Re-trains what the journal says was consumed after the checkpoint, from the stored frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from forebay.batching.updates import updates_digest
from forebay.errors import DamagedError, StoreError, WeightsError
from forebay.learner.feed import JournaledBatch, Packer
from forebay.store.protocol import JournalEntry, Store, TakenGroup
from forebay.telemetry.faults import fault_point
from forebay.trajectory import PolicyVersion

logger = logging.getLogger(__name__)


def replay(
    store: Store,
    journal: Iterable[JournalEntry],
    incarnation: int,
    pack: Packer,
    train: Callable[[JournaledBatch], None],
    published_digests: Callable[[PolicyVersion], Collection[str]],
    current_digest: Callable[[], str],
) -> int:
    """Train the journal's batches again, in order.

    A batch is packed as it was, from the same groups at the same version. Where the weights that it makes
    again are those that were published, bit for bit, the fork moves forward to them: tokens sampled by them
    keep their version. If a batch cannot be made again exactly, or a frame of it cannot be read back, the
    rest of the journal is given back to be taken anew; taking sets the damaged frame aside.

    Args:
        store: Holds the frames.
        journal: Entries after the checkpoint, in order.
        incarnation: The resuming learner's.
        pack: Makes the updates of a batch.
        train: Trains one batch.
        published_digests: Digests of the weights published under a version's number, by its incarnation or by
            later ones, as far as they are still there.
        current_digest: Digest of the learner's weights now.

    Returns:
        Number of batches trained again.
    """
    replayed = 0
    for entry in journal:
        batch = _remake_exactly(entry, store, pack)
        if batch is None:
            store.truncate_journal(entry.now.version, incarnation=incarnation)
            return replayed
        store.record(entry, incarnation=incarnation)
        train(batch)
        replayed += 1
        fault_point("replayed", entry.step)
        published = set(published_digests(PolicyVersion(entry.now.incarnation, entry.step)))
        if not published:
            continue
        if published == {current_digest()}:
            store.advance_fork(entry.step, incarnation=incarnation)
        else:
            logger.warning(
                "step %d was trained again and made other weights than those published", entry.step
            )
    return replayed


def _remake_exactly(entry: JournalEntry, store: Store, pack: Packer) -> JournaledBatch | None:
    try:
        batch = remake(entry, store.read_group, pack)
    except DamagedError as error:
        cause = str(error)
    else:
        if updates_digest(batch.updates) == entry.digest:
            return batch
        cause = "packing settings changed?"
    logger.warning(
        "step %d of the journal cannot be made again exactly (%s): its groups and the later ones are "
        "taken anew",
        entry.step,
        cause,
    )
    return None


class Retrained(NamedTuple):
    """A journal trained from its beginning.

    Attributes:
        version: The version that the last batch made.
        batches: How many there were.
        compared: Published versions whose weights were made again, bit for bit.
    """

    version: int
    batches: int
    compared: tuple[PolicyVersion, ...]


def retrain(
    journal: Iterable[JournalEntry],
    read_group: Callable[[str], TakenGroup],
    pack: Packer,
    train: Callable[[JournaledBatch], None],
    published: Mapping[PolicyVersion, str],
    current_digest: Callable[[], str],
) -> Retrained:
    """Train a whole journal from the weights that its run began with; nothing is written anywhere.

    Args:
        journal: Every entry of the run, in order.
        read_group: Returns a group from the stored frames.
        pack: Makes the updates of a batch.
        train: Trains one batch.
        published: Digests of versions of the surviving history, to compare with.
        current_digest: Digest of the weights now.

    Returns:
        What was made again.

    Raises:
        StoreError: The journal has a hole, or a batch cannot be packed as it was.
        WeightsError: The weights differ from those of a published version, the first that does.
    """
    step, batches = 0, 0
    compared: list[PolicyVersion] = []
    for entry in journal:
        if entry.now.version != step:
            raise StoreError(
                "the journal does not hold every batch",
                got=f"a batch for version {entry.now.version}",
                limit=f"one for version {step}",
                remedy="Only a run with learner.keep_consumed=true keeps its whole journal.",
            )
        batch = remake(entry, read_group, pack)
        if updates_digest(batch.updates) != entry.digest:
            raise StoreError(f"the batch of step {entry.step} cannot be packed again as it was")
        train(batch)
        step, batches = entry.step, batches + 1
        for version in (known for known in published if known.version == step):
            digest = current_digest()
            if digest != published[version]:
                raise WeightsError(
                    f"training the journal again makes other weights than {tuple(version)}, as published",
                    got=digest,
                    limit=published[version],
                )
            compared.append(version)
    return Retrained(step, batches, tuple(compared))


def remake(entry: JournalEntry, read_group: Callable[[str], TakenGroup], pack: Packer) -> JournaledBatch:
    """Pack a batch of the journal again, from the stored frames."""
    groups = tuple(read_group(group_id) for group_id in entry.group_ids)
    return JournaledBatch(entry, pack(groups, entry.now, entry.forks, entry.packing), groups)
