"""The template process of an environment, and the worker processes that it forks.

`python -m forebay.envs.worker_main FD` reads a `Blueprint` from stdin, imports what it names once, and
answers `Started` on the control socket FD. Then every `fork N` on that socket, with the end of another
socket attached, becomes worker N; `kill N` ends it with everything that it started. Memory is shared until
it is written to, and a worker is there within milliseconds whatever it imports.

When the control socket closes, everything below the template is killed: neither a worker that is stuck nor
what an environment left behind outlives the actor.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from forebay.envs.processes import children, kill_descendants, kill_tree
from forebay.envs.worker_episodes import Episodes, serve
from forebay.envs.worker_wire import Blueprint, Started
from forebay.errors import ConfigError

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_MAX_MESSAGE_BYTES: Final = 64


class Template:
    """Forks workers, kills them, and buries the dead.

    Args:
        control: Where the actor's wishes come from.
        work: What a worker does with its socket; the process ends when it returns.
    """

    def __init__(self, control: socket.socket, work: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._work = work
        self._pids: dict[bytes, int] = {}
        # What the imports started serves all workers.
        self._own = children(os.getpid())
        self._died, self._dying = os.pipe()

    def run(self) -> None:
        """Serve until the control socket closes.

        Consumes: `fork N` and `kill N`. Waits for: the control socket and the death of a child. Unblocked
            by: either; the end of the actor closes the socket. Produces: workers, and their end.
        """
        os.set_blocking(self._dying, False)
        os.set_blocking(self._died, False)
        signal.set_wakeup_fd(self._dying, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _no_action)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._died], [], [])
            if self._died in ready:
                os.read(self._died, 4096)
                self._bury()
            if self._control.fileno() in ready and not self._obey():
                kill_descendants(os.getpid())
                return

    def _obey(self) -> bool:
        message, sockets, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE_BYTES, 1)
        verb, _, number = message.partition(b" ")
        if verb == b"fork":
            self._fork(number, socket.socket(fileno=sockets[0]))
        elif verb == b"kill" and (pid := self._pids.get(number)):
            kill_tree(pid)
        return bool(message)

    def _fork(self, number: bytes, channel: socket.socket) -> None:
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            # The actor sees the end of the channel.
            sys.stderr.write(f"cannot fork a worker: {error}\n")
            pid = -1
        if not pid:
            self._become_worker(channel, template)
        channel.close()
        if pid > 0:
            self._pids[number] = pid

    def _become_worker(self, channel: socket.socket, template: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._died, self._dying, self._control.detach()):
                os.close(end)
            _reseed()
            if os.getppid() == template:  # or else it died before it could be watched
                self._work(channel)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            sys.stderr.flush()
            kill_descendants(os.getpid())
            os._exit(code)

    def _bury(self) -> None:
        """Collect dead children, and kill what dead workers left behind: it was handed to this process."""
        dead = set()
        while (pid := _next_dead()) is not None:
            dead.add(pid)
        self._pids = {number: pid for number, pid in self._pids.items() if pid not in dead}
        if dead:
            for orphan in children(os.getpid()) - set(self._pids.values()) - self._own:
                kill_tree(orphan)


def main() -> None:
    """Import, answer, and fork until the actor lets go."""
    blueprint = msgspec.json.decode(sys.stdin.buffer.read(), type=Blueprint)
    control = socket.socket(fileno=int(sys.argv[1]))
    # What the environment prints must not reach whoever reads the actor's output.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    episodes = Episodes(blueprint)
    started = _prepare(episodes) if blueprint.shared else Started()
    control.send(msgspec.json.encode(started))
    if not (started.failure or started.refusal):
        # Collections would write to every object, and so copy what workers share.
        gc.collect()
        gc.freeze()
        Template(control, lambda channel: serve(channel, episodes)).run()


def _prepare(episodes: Episodes) -> Started:
    try:
        episodes.load()
    except ConfigError as error:
        return Started(refusal=str(error))
    except Exception as error:  # noqa: BLE001  imports are foreign code, and the actor wants to hear of it
        traceback.print_exc()
        return Started(failure=f"{type(error).__name__}: {error}")
    return Started()


def _reseed() -> None:
    """Give the worker its own randomness: a fork inherits the state of the global generators."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _next_dead() -> int | None:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] or None
    except ChildProcessError:
        return None


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _no_action(*_: object) -> None:
    """Let a signal wake the select."""


if __name__ == "__main__":
    main()
