"""Taking from a redis store: the one wait of the store, with its deadline, and the batch at its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from forebay.clock import Clock
from forebay.staleness import Choice, OutstandingGroup
from forebay.store.batches import decode_group_frames
from forebay.store.offer import Offer
from forebay.store.protocol import Chooser, TakenGroup
from forebay.store.redis import scripts
from forebay.store.redis.packing import unpack_summaries
from forebay.store.redis.view import RedisView
from forebay.store.taking import first_pause_s

_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.025
_NEVER_LOOKED: Final = -1
_PAGE_GROUPS: Final = 256
_PAGE_GROWTH: Final = 4
_MOST_TRIES: Final = 4
_ALL: Final = -1


class _ChangedError(Exception):
    """The store has changed between two pages of a look."""


class _Look(NamedTuple):
    """What one look told the learner: its choice, and how many groups were not recorded."""

    choice: Choice
    num_live: int


class Taking:
    """One call of `take`.

    Waits for: a settled group, a published version, a deadline that passes. Unblocked by: actors' puts, the
    learner's own publish, the clock. Its own deadline: `timeout_s`. Between two looks at the groups it asks
    for one number, every 2 to 25 ms; a look at many groups is followed by a pause in proportion.

    Args:
        learn: Runs a script of the learner's.
        quarantine: Sets members of a group aside that cannot be read back, each for a reason.
        view: Reads frames.
        clock: Time of the deadline and of the pauses.
        incarnation: The learner's.
        choose: Picks groups.
    """

    def __init__(
        self,
        learn: Callable[..., list[Any]],
        quarantine: Callable[[str, Mapping[int, str]], None],
        view: RedisView,
        clock: Clock,
        incarnation: int,
        choose: Chooser,
    ) -> None:
        self._learn, self._quarantine = learn, quarantine
        self._view, self._clock = view, clock
        self._incarnation, self._choose = incarnation, choose
        self._watch = _NEVER_LOOKED

    def wait(self, timeout_s: float) -> tuple[tuple[TakenGroup, ...], Choice]:
        """Take groups, waiting at most `timeout_s` seconds; see `TrajectorySource.take`."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        choice, num_live = Choice(), None
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = self._clock.monotonic_s()
            seen = self._look()
            if seen is not None:
                choice = seen.choice
                num_live = seen.num_live if num_live is None else num_live
                taken = self._seize(choice)
                if taken is None:
                    self._watch = _NEVER_LOOKED
                    continue
                # A group that left untrained must be replaced by the caller: waiting on would starve it.
                if taken or choice.stale or seen.num_live < num_live:
                    return taken, choice
                pause_s = first_pause_s(self._clock.monotonic_s() - began_s)
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0.0:
                return (), choice
            self._clock.sleep(min(pause_s, left_s))
            pause_s = min(2.0 * pause_s, _LAST_PAUSE_S)

    def _look(self) -> _Look | None:
        """Let the learner choose, or return None if nothing has changed since the last look.

        It is given the groups page by page, all of one moment: if the store changes between two pages it
        chooses again, and at the last try it is given all in one.
        """
        tries = 0
        while True:
            tries += 1
            last = _PAGE_GROUPS - 1 if tries < _MOST_TRIES else _ALL
            self._watch, *changed = self._learn(scripts.LOOK, self._incarnation, self._watch, last)
            if not changed:
                return None
            num_live, *page = changed
            try:
                choice = self._choose(Offer(self._groups(num_live, page)))
            except _ChangedError:
                self._watch = _NEVER_LOOKED
            else:
                return _Look(choice, num_live)

    def _groups(self, num_live: int, page: Sequence[Any]) -> Iterator[OutstandingGroup]:
        """Yield what can be chosen, in order of dispatch.

        Raises:
            _ChangedError: The store has changed since the first page.
        """
        known, size = 0, _PAGE_GROUPS
        while True:
            names, summaries = page
            yield from unpack_summaries(names, summaries)
            known += len(names)
            if known >= num_live:
                return
            size *= _PAGE_GROWTH
            page = self._view.more(self._watch, known, known + size - 1)
            if not page:
                raise _ChangedError

    def _seize(self, choice: Choice) -> tuple[TakenGroup, ...] | None:
        """Take what was chosen; None if a new look is due: the store has changed, or a frame is broken."""
        if not choice.take and not choice.stale:
            return ()
        # Frames of settled groups stay as they are, and the script takes settled groups only.
        found = self._view.read_many(choice.take)
        whole: list[TakenGroup] = []
        broken = False
        for group_id, raw in zip(choice.take, found, strict=True):
            if raw is None:
                return None
            group, errors = decode_group_frames(raw)
            whole.append(group)
            if errors:
                broken = True
                self._quarantine(group_id, {member: error.reason for member, error in errors.items()})
        if broken:
            return None
        token = secrets.token_hex(12)
        arguments = (token, len(choice.take), *choice.take, *choice.stale)
        (done,) = self._learn(scripts.SEIZE, self._incarnation, *arguments)
        return tuple(whole) if done else None
