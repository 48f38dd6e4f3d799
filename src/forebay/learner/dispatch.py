"""Keeps as many groups in flight as can still be trained fresh enough."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from forebay.learner.fairness import FairShares
from forebay.learner.families import Families, Posed
from forebay.staleness import StalenessSettings, credit_batches, dispatch_allowance
from forebay.store.protocol import GroupSpec, Store, StoreStats
from forebay.telemetry.trace import OFF, Tracer, member_name
from forebay.trajectory import PolicyVersion, Task

# (serial, what is posed, min_version) -> group.
GroupMaker = Callable[[int, Posed, PolicyVersion], GroupSpec]


class Dispatcher:
    """Tops up the outstanding groups whenever credit is free.

    Several environments share the credit as they share the batches that it is for: each has as many groups in
    flight as the coming batches owe it, so that one that lost a group, or is slow, gets its groups first, and
    one that is fast cannot take their place.

    Consumes: credit, computed from the store's state. Waits for: a published version, a dropped group, or
    `period_s`. Unblocked by: `wake`. Produces: dispatched groups.

    Args:
        store: Where groups go.
        incarnation: The learner's.
        make_group: Makes a group of a serial, which repeats a task, is of an environment, or of whichever
            environment has its turn.
        settings: The staleness rule.
        groups_per_batch: Groups that one batch takes.
        updates_per_batch: Optimizer steps, and so versions, per batch.
        last_version: The version that the run ends with.
        fairness: How environments share the batches; None where there is but one.
        period_s: Longest time between two looks at the store.
        tracer: Records what it dispatches.
        parts: Groups that a task is dispatched as.

    Attributes:
        fairness: As given; the feed decides by the same.
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
        fairness: FairShares | None = None,
        period_s: float = 0.1,
        tracer: Tracer = OFF,
        parts: int = 1,
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._make_group = make_group
        self._settings = settings
        self._groups_per_batch = groups_per_batch
        self._updates_per_batch = updates_per_batch
        self._last_version = last_version
        self.fairness = fairness
        self._period_s = period_s
        self._tracer = tracer
        # The feed's thread names groups that came too late while this one dispatches.
        self._lock = threading.Lock()
        self._repeat: deque[Task] = deque()
        self._posed: dict[str, Task] = {}
        self._late: Counter[str] = Counter()
        self._families = Families(parts)
        self._families.restore(store, by_environment=fairness is not None)
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

        Only tasks that this process dispatched are known; another one's come again with the next epoch. A
        task of P parts is posed whole, so of the parts that an environment lost only every P-th has its task
        posed again: as many as were lost.
        """
        with self._lock:
            task = self._posed.pop(group_id, None)
            if task is None:
                return
            self._late[task.environment] += 1
            if self._late[task.environment] % self._families.parts:
                return
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
            groups_left=batches_left * self._groups_per_batch + self._num_doubtful(stats),
            updates_per_batch=self._updates_per_batch,
        )
        if not allowance:
            return 0
        planned = self._families.plan(
            self._turns(stats, allowance, batches_left),
            stats.next_serial,
            self._repeated,
            lambda serial, posed: self._make_group(serial, posed, stats.published),
        )
        groups = [one.group for one in planned]
        members = tuple(filter(self._tracer.follows, _members(groups))) if self._tracer.enabled else ()
        with self._tracer.span("store.dispatch", members=members, arguments={"groups": len(groups)}):
            accepted = self._store.dispatch(groups, incarnation=self._incarnation)
        self._families.note(planned[:accepted])
        self._remember(groups[:accepted])
        unused = [one.began_with for one in planned[accepted:]]
        with self._lock:
            self._repeat.extendleft(reversed([task for task in unused if isinstance(task, Task)]))
        return accepted

    def _num_doubtful(self, stats: StoreStats) -> int:
        """Return how many groups in flight the rest of the run does not count on."""
        suspended = self.fairness.suspended if self.fairness is not None else ()
        return sum(stats.live_by_environment.get(name, 0) for name in suspended)

    def _turns(self, stats: StoreStats, allowance: int, batches_left: int) -> list[str | None]:
        """Return whose turn each group that may be dispatched is; None if that goes without saying."""
        if self.fairness is None:
            return [None] * allowance
        live = Counter(stats.live_by_environment)
        published = stats.published.version // self._updates_per_batch
        recorded = published + (stats.outstanding - live.total()) // self._groups_per_batch
        in_flight = credit_batches(self._settings, self._updates_per_batch)
        return [*self.fairness.turns(recorded, published + min(in_flight, batches_left), live, allowance)]

    def _repeated(self, whose: str | None) -> Posed:
        """Return a task to pose again of whose turn it is, if there is one."""
        with self._lock:
            for index, task in enumerate(self._repeat):
                if whose is None or task.environment == whose:
                    del self._repeat[index]
                    return task
        return whose

    def _remember(self, groups: list[GroupSpec]) -> None:
        # Consumed groups are not forgotten one by one: all go but the newest, which cover all outstanding.
        limit = 2 * self._settings.batches_in_flight * self._groups_per_batch
        with self._lock:
            self._posed |= {group.group_id: group.task for group in groups}
            for group_id in list(self._posed)[: max(0, len(self._posed) - limit)]:
                del self._posed[group_id]


def _members(groups: Sequence[GroupSpec]) -> Iterator[str]:
    return (member_name(group.group_id, member) for group in groups for member in range(group.group_size))
