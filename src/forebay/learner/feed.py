"""Takes settled groups, packs them and journals them, ahead of the step that trains them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

from forebay.batching.batch import Batch
from forebay.batching.updates import updates_digest
from forebay.staleness import Choice, Fork, StalenessSettings, choose_groups
from forebay.store.protocol import JournalEntry, Store, TakenGroup
from forebay.telemetry.faults import fault_point
from forebay.trajectory import PolicyVersion

_TAKE_TIMEOUT_S = 0.25
# (groups, version before the first update, forks) -> one batch per optimizer update.
Packer = Callable[[tuple[TakenGroup, ...], PolicyVersion, tuple[Fork, ...]], tuple[Batch, ...]]


class JournaledBatch(NamedTuple):
    """Groups that were taken, packed and written to the journal.

    Attributes:
        entry: The journal's record of them.
        updates: One batch per optimizer update, in order.
        groups: What was taken.
    """

    entry: JournalEntry
    updates: tuple[Batch, ...]
    groups: tuple[TakenGroup, ...]


class Feed:
    """The learner's source of batches.

    Consumes: settled groups. Waits for: enough of them, fresh enough, or an urgent one. Unblocked by: actors.
    Produces: journaled batches; the journal is durable before a batch is handed out, so that no crash trains
    it twice.

    Args:
        store: Where groups come from.
        incarnation: The learner's.
        forks: Where incarnations began.
        pack: Makes the batches of the groups.
        settings: The staleness rule.
        groups_per_batch: Groups of one batch.
        updates_per_batch: Optimizer updates, and so versions, of one batch.
        repeat: Called with the name of a group that came too late, so that its task is posed again.
    """

    def __init__(
        self,
        store: Store,
        incarnation: int,
        forks: tuple[Fork, ...],
        pack: Packer,
        settings: StalenessSettings,
        groups_per_batch: int,
        updates_per_batch: int,
        repeat: Callable[[str], None],
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._forks = forks
        self._pack = pack
        self._settings = settings
        self._groups_per_batch = groups_per_batch
        self._updates_per_batch = updates_per_batch
        self._repeat = repeat
        self._num_barren = 0
        self.waits_for = "the first groups"

    def next(self, version: int, stopping: threading.Event) -> JournaledBatch | None:
        """Return the batch that will be differentiated at `version`; None once `stopping` is set.

        Raises:
            FencedError: A newer learner has taken over.
            StoreError: The journal cannot be written.
        """
        now = PolicyVersion(self._incarnation, version)
        choose = functools.partial(
            choose_groups,
            now=now,
            settings=self._settings,
            groups_per_batch=self._groups_per_batch,
            forks=self._forks,
            updates_per_batch=self._updates_per_batch,
        )
        while not stopping.is_set():
            groups, choice = self._store.take(
                incarnation=self._incarnation, choose=choose, timeout_s=_TAKE_TIMEOUT_S
            )
            self.waits_for = describe(choice, self._num_barren)
            for group_id in choice.stale:
                self._repeat(group_id)
            if groups:
                batch = self._journal(groups, now)
                if batch is not None:
                    return batch
        return None

    def _journal(self, groups: tuple[TakenGroup, ...], now: PolicyVersion) -> JournaledBatch | None:
        fault_point("taken", now.version)
        updates = self._pack(groups, now, self._forks)
        fault_point("packed", now.version)
        if all(update.empty for update in updates):
            self._num_barren += len(groups)
            for group in groups:
                self._store.reject(
                    group.spec.group_id, incarnation=self._incarnation, reason="no_fresh_token"
                )
                self._repeat(group.spec.group_id)
            return None
        entry = JournalEntry(
            step=now.version + len(updates),
            now=now,
            forks=self._forks,
            group_ids=tuple(group.spec.group_id for group in groups),
            digest=updates_digest(updates),
        )
        self._store.record(entry, incarnation=self._incarnation)
        self._num_barren = 0
        fault_point("recorded", entry.step)
        return JournaledBatch(entry, updates, groups)


def describe(choice: Choice, num_barren: int = 0) -> str:
    """Name what the learner waits for.

    Args:
        choice: What it saw last.
        num_barren: Groups since the last batch that had nothing to train: masked, or never scored.

    Example:
        >>> describe(Choice(missing=3))
        '3 more settled groups'
    """
    barren = f", the last {num_barren} having had no fresh token" if num_barren else ""
    if choice.urgent is not None:
        return f"urgent group {choice.urgent}{barren}"
    if choice.missing:
        return f"{choice.missing} more settled groups{barren}"
    return "nothing"
