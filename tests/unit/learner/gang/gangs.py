"""Gangs whose processes are threads of one, over real connections."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from forebay.clock import SystemClock
from forebay.learner.gang.gang import Ended, Gang
from forebay.learner.gang.link import Introduction, Link

CLOCK = SystemClock()


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        return server.accept()[0], there


@dataclass
class Threads:
    """Gangs of several processes, and how each ended.

    Args:
        number: How many processes.
        silent_s: Silence after which one counts as gone.
    """

    number: int
    silent_s: float = 60.0
    gangs: list[Gang] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)
    sockets: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)

    def __enter__(self) -> Threads:
        self.sockets = [connected() for _ in range(1, self.number)]
        ours = {number: pair[0] for number, pair in enumerate(self.sockets, start=1)}
        self.gangs = [self._gang(0, ours)]
        self.gangs += [self._gang(number, {0: pair[1]}) for number, pair in enumerate(self.sockets, start=1)]
        return self

    def __exit__(self, *_: object) -> None:
        for gang in self.gangs:
            gang.close()
        for pair in self.sockets:
            for end in pair:
                end.close()

    def who(self, number: int) -> Introduction:
        return Introduction(number, self.number, "run", "settings", "here", 1000 + number)

    def _gang(self, number: int, connections: dict[int, socket.socket]) -> Gang:
        links = {
            peer: lambda gang, peer=peer, end=end: Link(end, self.who(peer), CLOCK, gang.took, gang.end)
            for peer, end in connections.items()
        }
        return Gang(
            self.who(number),
            links,
            CLOCK,
            silent_s=self.silent_s,
            on_end=lambda ended: self.ended.__setitem__(number, ended),
        )
