"""When and where a process that works on a store dies: planned from a seed, carried out by the process.

A point is a verb of the store and a moment of it: `before` it begins, `inside` it (at a change in its
transaction, at a step of a side file, with a request sent to a server and no answer read), `committed` (it is
durable, and the caller does not know yet), `after` it has returned and before the caller has noted so. The
process that reaches its point for the planned time ends by SIGKILL. A fate without a point ends at a random
time, wherever the process is then.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from forebay.store.lmdb import LmdbEngine, LmdbTxn

Role = Literal["learner", "putter", "settler", "compactor"]
Moment = Literal["before", "inside", "committed", "after"]
Reached = Callable[[Moment], None]

CHANGES: dict[Role, tuple[str, ...]] = {
    "learner": (
        "dispatch", "take", "record", "publish", "commit", "rewind", "reject", "release", "truncate_journal",
        "advance_fork",
    ),
    "putter": ("claim", "heartbeat", "put", "put_many", "fail", "release_slot"),
    "settler": ("settle_expired",),
    "compactor": (),
}  # fmt: skip
FILES: dict[Role, tuple[str, ...]] = {"learner": (), "putter": (), "settler": (), "compactor": ("compact",)}
LOOKS: dict[Role, tuple[str, ...]] = {
    "learner": ("read_group",),
    "putter": (),
    "settler": ("stats", "audit", "journal"),
    "compactor": (),
}
_ONCE = ("rewind", "truncate_journal")
_MOST_TIMES: dict[Role, int] = {"learner": 4, "putter": 40, "settler": 80, "compactor": 9}
_LONGEST_S: dict[Role, float] = {"learner": 0.5, "putter": 1.2, "settler": 2.0, "compactor": 0.02}
_FILE_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"})
_MOMENTS: tuple[Moment, ...] = ("before", "inside", "committed", "after")


@dataclass(frozen=True)
class Fate:
    """How one life of a process ends.

    Args:
        verb: The verb in which it dies; "" for wherever it is.
        moment: Where in the verb.
        count: How often the moment is reached before, and with, the last time.
        delay_s: How long it lives if it has no point, once it has opened the store.
        opening: Whether it does not live that long: it is opening the store then.
        usurped: Whether a successor begins while it still lives, which then must fence it.
    """

    verb: str = ""
    moment: Moment = "before"
    count: int = 1
    delay_s: float = 0.0
    opening: bool = False
    usurped: bool = False

    @property
    def name(self) -> str:
        """The point's name, for tables."""
        if self.verb:
            return f"{self.verb} {self.moment}"
        return "opening" if self.opening else "usurped" if self.usurped else "any time"


def points_of(role: Role) -> tuple[tuple[str, Moment], ...]:
    """Return every point at which a role can die."""
    changes = [(verb, moment) for verb in CHANGES[role] for moment in _MOMENTS]
    looks = [(verb, moment) for verb in LOOKS[role] for moment in _MOMENTS if moment in ("before", "after")]
    files = [(verb, moment) for verb in FILES[role] for moment in _MOMENTS if moment != "committed"]
    return (*changes, *looks, *files)


def plan_fates(role: Role, seed: int) -> Iterator[Fate]:
    """Yield the ends of a role's lives: every point in a random order, again and again, and times between."""
    rng = random.Random(f"{role} {seed}")
    points = list(points_of(role))
    while True:
        rng.shuffle(points)
        for verb, moment in points:
            if rng.random() < 0.5:
                kind = rng.random()
                if kind < 0.2 or role == "compactor":
                    yield Fate(delay_s=rng.uniform(0.0, 0.03), opening=True)
                else:
                    usurped = role == "learner" and kind < 0.5
                    yield Fate(delay_s=rng.uniform(0.0, _LONGEST_S[role]), usurped=usurped)
            once = verb in _ONCE and moment != "inside"
            yield Fate(verb, moment, 1 if once else rng.randint(1, _MOST_TIMES[role]))


class Mortal:
    """Passes every verb on to a store, and ends the process where its fate says so.

    Args:
        store: An open store; None for a process whose work is made with `do` alone.
        fate: Where it ends; one without a point never ends it.
    """

    def __init__(self, store: Any, fate: Fate) -> None:
        self._store, self._fate, self._left, self._verb = store, fate, fate.count, ""
        if store is not None:
            _watch(store, self.reached)
        sys.addaudithook(self._heard)

    def reached(self, moment: Moment) -> None:
        """Die here if this is the point, for the planned time."""
        if self._verb and (self._verb, moment) == (self._fate.verb, self._fate.moment):
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, verb: str) -> Any:
        return lambda *args, **kwargs: self.do(verb, getattr(self._store, verb), *args, **kwargs)

    def do(self, verb: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call under a verb's name."""
        self._verb = verb
        self.reached("before")
        try:
            value = call(*args, **kwargs)
            self.reached("after")
        finally:
            self._verb = ""
        return value

    def _heard(self, event: str, arguments: object) -> None:
        if event in _FILE_EVENTS:
            self.reached("inside")


def _watch(store: Any, reached: Reached) -> None:
    """Announce what happens inside the verbs of a store, in this process."""
    transactions = getattr(store, "_transactions", None)
    if transactions is None:
        from redis.connection import AbstractConnection

        _announce(AbstractConnection, "send_packed_command", "inside", reached)
        _announce(AbstractConnection, "read_response", "committed", reached)
    else:
        _announce(LmdbTxn, "put", "inside", reached)
        _announce(LmdbTxn, "delete", "inside", reached)
        _announce(LmdbTxn, "delete_all", "inside", reached)
        _announce(LmdbEngine, "write", "committed", reached)


def _announce(owner: type, name: str, moment: Moment, reached: Reached) -> None:
    """Announce every return of a method."""
    call = getattr(owner, name)

    def announcing(*args: Any, **kwargs: Any) -> Any:
        value = call(*args, **kwargs)
        reached(moment)
        return value

    setattr(owner, name, announcing)
