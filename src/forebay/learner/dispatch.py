"""Keeps as many groups in flight as can still be trained fresh enough."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from forebay.staleness import StalenessSettings, dispatch_allowance
from forebay.store.protocol import GroupSpec, Store
from forebay.telemetry.trace import OFF, Tracer, member_name
from forebay.trajectory import PolicyVersion, Task

GroupMaker = Callable[[int, Task | None, PolicyVersion], GroupSpec]


class Dispatcher:
    """Tops up the outstanding groups whenever credit is free.

    Consumes: credit, computed from the store's state. Waits for: a published version, a dropped group, or
    `period_s`. Unblocked by: `wake`. Produces: dispatched groups.

    Args:
        store: Where groups go.
        incarnation: The learner's.
        make_group: `(serial, task to repeat or None, min_version) -> GroupSpec`.
        settings: The staleness rule.
        groups_per_batch: Groups that one batch takes.
        updates_per_batch: Optimizer steps, and so versions, per batch.
        last_version: The version that the run ends with.
        period_s: Longest time between two looks at the store.
        tracer: Records what it dispatches.
    """

    def __init__(
        self,
        store: Store,
        incarnation: int,
        make_group: GroupMaker,
        settings: StalenessSettings,
        groups_per_batch: int,
        updates_per_batch: int,
        last_version: int,
        period_s: float = 0.1,
        tracer: Tracer = OFF,
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._make_group = make_group
        self._settings = settings
        self._groups_per_batch = groups_per_batch
        self._updates_per_batch = updates_per_batch
        self._last_version = last_version
        self._period_s = period_s
        self._tracer = tracer
        self._repeat: deque[Task] = deque()
        self._posed: dict[str, Task] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._executor = ThreadPoolExecutor(1, "dispatch")
        self._running: Future[None] | None = None

    def start(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Dispatch in the background; `on_start` runs first in the new thread."""

        def run() -> None:
            on_start()
            while not self._stopping:
                self.top_up()
                self._wake.wait(self._period_s)
                self._wake.clear()

        self._running = self._executor.submit(run)

    def check(self) -> None:
        """Raise what ended the background thread, if anything did."""
        if self._running is not None and self._running.done():
            self._running.result()

    def wake(self) -> None:
        """Look at the store now."""
        self._wake.set()

    def repeat(self, group_id: str) -> None:
        """Pose the task of a group again, because the group came too late to be trained.

        Only tasks that this process dispatched are known; another one's come again with the next epoch.
        """
        task = self._posed.pop(group_id, None)
        if task is not None:
            self._repeat.append(task)
            self.wake()

    def stop(self) -> None:
        """End the background thread."""
        self._stopping = True
        self.wake()
        self._executor.shutdown(wait=True)

    def top_up(self) -> int:
        """Dispatch what the credit allows; return the number of groups dispatched."""
        stats = self._store.stats()
        batches_left = -(-(self._last_version - stats.published.version) // self._updates_per_batch)
        allowance = dispatch_allowance(
            self._settings,
            self._groups_per_batch,
            stats.outstanding,
            groups_left=batches_left * self._groups_per_batch,
            updates_per_batch=self._updates_per_batch,
        )
        if not allowance:
            return 0
        repeats = [self._repeat.popleft() for _ in range(min(allowance, len(self._repeat)))]
        tasks = [*repeats, *[None] * (allowance - len(repeats))]
        groups = [
            self._make_group(stats.next_serial + i, task, stats.published) for i, task in enumerate(tasks)
        ]
        members = tuple(filter(self._tracer.follows, _members(groups))) if self._tracer.enabled else ()
        with self._tracer.span("store.dispatch", members=members, arguments={"groups": len(groups)}):
            accepted = self._store.dispatch(groups, incarnation=self._incarnation)
        self._remember(groups[:accepted])
        self._repeat.extendleft(reversed([task for task in tasks[accepted:] if task is not None]))
        return accepted

    def _remember(self, groups: list[GroupSpec]) -> None:
        self._posed |= {group.group_id: group.task for group in groups}
        # Consumed groups are not forgotten one by one: all go but the newest, which cover all outstanding.
        limit = 2 * self._settings.batches_in_flight * self._groups_per_batch
        for group_id in list(self._posed)[: max(0, len(self._posed) - limit)]:
            del self._posed[group_id]


def _members(groups: Sequence[GroupSpec]) -> Iterator[str]:
    return (member_name(group.group_id, member) for group in groups for member in range(group.group_size))
