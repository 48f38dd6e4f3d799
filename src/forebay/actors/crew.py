"""The crew: the actor processes of a run, of which one decides for all how many episodes run at once.

Pure: notes go in and out. Every process tells what its episodes did; the one that has been there longest
takes that in, decides as if there were one process, and tells how many episodes all may run together. Each
runs an equal part. When that one is gone, the next takes over with the numbers that it knew last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forebay.actors.board import Note, Posted, Sight, shifted
from forebay.actors.controller import Decision, Demand, Observation
from forebay.actors.lanes import Lanes, Part

# What nobody takes in is forgotten after so many looks.
_MOST_SIGHTS: Final = 8


class Crew:
    """What one process knows of the others.

    Args:
        name: This process, different at every start of it.
        joined_s: Wall clock at its beginning.
        lanes: Its places.
        expected: Processes that begin together: none runs the part of one that is yet to come.
        patience_s: Who has written nothing for so long is gone, or does not come.
    """

    def __init__(
        self, name: str, joined_s: float, lanes: Lanes, *, expected: int = 1, patience_s: float = 5.0
    ) -> None:
        self._name, self._joined_s, self._patience_s = name, joined_s, patience_s
        self._expected, self._began_s, self._met_s = expected, -1.0, 0.0
        self.lanes, self._first = lanes, lanes.totals(0.0)
        self.decides = True
        self._number = 0
        self._live: Mapping[str, int] = {}
        self._pending: list[Sight] = []
        self._heard: dict[str, int] = {}
        self._present: dict[str, Posted] = {}

    @property
    def num_processes(self) -> int:
        """Processes that are there, this one too."""
        return max(1, len(self._present))

    def look(self, now_s: float, live: Mapping[str, int]) -> Note:
        """Take in what this process's episodes did; return what to tell the others.

        Args:
            now_s: Monotonic clock.
            live: Episodes that hold a place, by environment.
        """
        self._number += 1
        self._live = dict(live)
        self._pending.append(self.lanes.drain(self._number))
        del self._pending[:-_MOST_SIGHTS]
        return self.note(now_s)

    def note(self, now_s: float) -> Note:
        """Return what to tell the others."""
        return Note(
            self._joined_s,
            now_s,
            dict(self._live),
            dict(self.lanes.waits),
            tuple(self._pending),
            dict(self._heard) if self.decides else {},
            self.lanes.totals(now_s) if self.decides else None,
        )

    def meet(self, posted: Mapping[str, Posted], now_s: float) -> bool:
        """Take in who is there; return whether another one decides than before.

        Args:
            posted: The newest notes, by process.
            now_s: Monotonic clock.
        """
        self._present = {name: one for name, one in posted.items() if one.age_s <= self._patience_s}
        order = sorted(self._present, key=lambda name: (self._present[name].note.joined_s, name))
        if self._name not in self._present:
            return False
        self._met_s = now_s
        if self._began_s < 0.0:
            self._began_s = now_s
            self._join(order, now_s)
        if now_s >= self._began_s + self._patience_s:
            self._expected = 1
        self.lanes.part = Part(order.index(self._name), max(len(order), self._expected))
        decided, self.decides = self.decides, order[0] == self._name
        if self.decides:
            self.lanes.take_over(now_s)
        else:
            self._follow(self._present[order[0]].note, now_s)
        return self.decides != decided

    def decide(self, now_s: float, demand: Mapping[str, Demand]) -> list[tuple[str, Decision]]:
        """Decide for all processes; return the decisions by environment.

        Args:
            now_s: Monotonic clock.
            demand: What the store shows, by environment.
        """
        sights = [(sight, sight.turns) for sight in self._pending]
        self._pending.clear()
        self.lanes.release(self._number)
        others = {name: one for name, one in self._present.items() if name != self._name}
        for name, one in others.items():
            heard = self._heard.get(name, 0)
            news = [sight for sight in one.note.sights if sight.number > heard]
            sights += [(sight, dict(shifted(one, sight, self._met_s))) for sight in news]
            self._heard[name] = max([heard, *(sight.number for sight in news)])
        self._heard = {name: number for name, number in self._heard.items() if name in others}
        notes = [one.note for one in others.values()]
        lag_s = max((one.age_s for one in others.values()), default=0.0)
        seen = {
            name: Observation(
                now_s=now_s,
                live=self._live.get(name, 0) + sum(note.live.get(name, 0) for note in notes),
                work_waits=_most([self.lanes.waits[name], *(note.waits.get(name, True) for note in notes)]),
                turns=tuple(turn for _, turns in sights for turn in turns.get(name, ())),
                failures=sum(sight.failures.get(name, 0) for sight, _ in sights),
                episodes_s=tuple(s for sight, _ in sights for s in sight.episodes_s.get(name, ())),
                demand=demand.get(name),
            )
            for name in self.lanes.controllers
        }
        return self.lanes.look(seen, lag_s=lag_s)

    def _join(self, order: Sequence[str], now_s: float) -> None:
        """Begin with what the others run: with a clock that is behind theirs, it is the one that decides."""
        plans = (self._present[name].note.plan for name in order if name != self._name)
        plan = next((dict(one) for one in plans if one is not None), None)
        if plan is not None and self.lanes.totals(now_s) == self._first != plan:
            self.lanes.plan = plan

    def _follow(self, note: Note, now_s: float) -> None:
        """Do what the one that decides tells."""
        heard = note.heard.get(self._name, 0)
        self._pending = [sight for sight in self._pending if sight.number > heard]
        self.lanes.release(heard)
        if note.plan is not None:
            self.lanes.plan = dict(note.plan)
        elif self.lanes.plan is None:
            self.lanes.plan = self.lanes.totals(now_s)


def _most(said: list[bool]) -> bool:
    return 2 * sum(said) >= len(said)
