"""A TCP proxy that loses answers: the server has acted, the client does not know."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

# The first of several answers is lost with the others: the server gets this long for what was sent with it.
_ACT_S = 0.05


class LossyProxy:
    """Forwards connections to a server; told to, it forwards a request and cuts instead of answering.

    Args:
        port: The server's port on the loopback interface.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._to_lose = 0
        self._gate = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.lost = 0

    @property
    def url(self) -> str:
        """Its address, as `store.url` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_answers(self, number: int) -> None:
        """Lose the next answers, each with its connection."""
        with self._gate:
            self._to_lose = number

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            _cut(connection)
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._connections += (client, server)
                for connection in (client, server):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._forward, client, server, False)
                self._start(self._forward, server, client, True)

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):  # the other direction was cut
            while data := source.recv(1 << 16):
                if answers and self._loses():
                    time.sleep(_ACT_S)
                    break
                sink.sendall(data)
        _cut(source)
        _cut(sink)

    def _loses(self) -> bool:
        with self._gate:
            loses = self._to_lose > 0
            self._to_lose -= loses
            self.lost += loses
            return loses


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is cut already
        connection.shutdown(socket.SHUT_RDWR)
