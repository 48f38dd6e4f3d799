"""How a process finds the others of its learner: the coordinator of JAX, and a connection to process 0."""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax
import msgspec

from forebay.clock import Clock
from forebay.errors import ConfigError, ForebayError, PeerFailedError, WireError, first_cause
from forebay.learner.gang.gang import Ended, Gang
from forebay.learner.gang.link import Introduction, Link, admit, introduce, is_closed
from forebay.learner.gang.token import TOKEN_VARIABLE

logger = logging.getLogger(__name__)

_MIN_TOKEN_LETTERS = 16
_CONNECT_S = 5.0
_RETRY_S = 0.1
_SETTLE_S = 6.0
_LEAVING = "leaving"


class Place(NamedTuple):
    """Where a process is among those of its learner.

    Attributes:
        process: Its number; 0 leads.
        num_processes: How many there are.
        host: Where process 0 is.
        port: Of JAX's coordinator there; ours is the next one.
        token: What all of them know.
        local_devices: Numbers of this host's accelerators that are this process's; empty for all.
    """

    process: int
    num_processes: int
    host: str
    port: int
    token: str
    local_devices: tuple[int, ...] = ()

    def check(self) -> None:
        """Refuse a place that cannot be.

        Raises:
            ConfigError: With the remedy.
        """
        if not 0 <= self.process < self.num_processes:
            raise ConfigError(
                "there is no such process of the learner",
                got=f"--process-id {self.process}",
                limit=f"0 to {self.num_processes - 1}, as learner.processes={self.num_processes}",
                remedy="Number the processes from 0.",
            )
        if not self.is_loopback and len(self.token) < _MIN_TOKEN_LETTERS:
            raise ConfigError(
                f"processes of a learner that connect over {self.host} need a token",
                got=f"{TOKEN_VARIABLE} of {len(self.token)} letters",
                limit=f"at least {_MIN_TOKEN_LETTERS}",
                remedy=f"Set {TOKEN_VARIABLE} to the same random text for every process.",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether all processes are on this machine, and nothing listens to others."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def place_of(
    process: int, num_processes: int, coordinator: str | None, environment: Mapping[str, str]
) -> Place:
    """Return the place that options and environment variables name.

    Args:
        process: Number of this process.
        num_processes: How many there are.
        coordinator: `HOST:PORT` of process 0.
        environment: Holds `FOREBAY_GANG_TOKEN`, and `JAX_LOCAL_DEVICE_IDS` if this process is not to use
            every accelerator of its host.

    Raises:
        ConfigError: With the remedy.

    Example:
        >>> place_of(1, 2, "127.0.0.1:9410", {}).port
        9410
    """
    host, _, port = (coordinator or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65535:
        raise ConfigError(
            "processes of a learner need an address to meet at",
            got=f"--coordinator {coordinator or 'not given'}",
            limit="HOST:PORT, and the next port free too",
            remedy="Give the address of process 0, the same to every process.",
        )
    devices = environment.get("JAX_LOCAL_DEVICE_IDS", "")
    place = Place(
        process,
        num_processes,
        host.strip("[]"),
        int(port),
        environment.get(TOKEN_VARIABLE, ""),
        tuple(int(number) for number in devices.split(",") if number),
    )
    place.check()
    return place


@contextmanager
def join(
    place: Place,
    run_id: str,
    settings: str,
    clock: Clock,
    *,
    start_s: float,
    silent_s: float,
    on_end: Callable[[Ended], None] | None = None,
) -> Iterator[Gang]:
    """Meet the other processes; at the end say farewell, or why this process fails.

    Args:
        place: Where this process is among them.
        run_id: The run.
        settings: Hash of its configuration; all must have the same.
        clock: Source of time.
        start_s: Longest wait for the others.
        silent_s: Silence after which a process counts as gone.
        on_end: Ends this process when another is gone; by default prints the cause and exits.

    Raises:
        PeerFailedError: They did not all come.
    """
    place.check()
    me = Introduction(place.process, place.num_processes, run_id, settings, socket.gethostname(), os.getpid())
    meet = _assemble if place.process == 0 else _report
    gang = meet(place, me, clock, start_s, silent_s, on_end or _end_process)
    try:
        _initialize(place, start_s)
        yield gang
        # JAX waits for the others half a minute only, and process 0 may have a summary to upload.
        gang.barrier(_LEAVING)
    except ForebayError as error:
        gang.close(str(first_cause(error)))
        raise
    except Exception as error:
        # A lost process makes collectives fail too: the watch knows the cause better.
        gang.settle(_SETTLE_S)
        gang.close(f"{type(error).__name__}: {error}")
        # Before JAX's own, which would wait for processes that are gone.
        atexit.register(_leave)
        raise
    else:
        jax.distributed.shutdown()
        gang.close()


def _initialize(place: Place, start_s: float) -> None:
    # Its handler would swallow SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    host = f"[{place.host}]" if ":" in place.host else place.host
    try:
        jax.distributed.initialize(
            f"{host}:{place.port}",
            place.num_processes,
            place.process,
            local_device_ids=list(place.local_devices) or None,
            cluster_detection_method="deactivate",
            initialization_timeout=int(start_s),
            coordinator_bind_address=f"{host}:{place.port}",
            shutdown_timeout_seconds=30,
        )
    except RuntimeError as error:
        raise PeerFailedError(
            f"the processes of the learner cannot be connected: {error}",
            remedy=f"See that port {place.port} of {place.host} is free there and reachable from here.",
        ) from error


def _assemble(
    place: Place,
    me: Introduction,
    clock: Clock,
    start_s: float,
    silent_s: float,
    on_end: Callable[[Ended], None],
) -> Gang:
    """As process 0, wait for all others; none of them hears of it before all are here."""
    connections: dict[int, tuple[socket.socket, Introduction]] = {}
    deadline_s = clock.monotonic_s() + start_s
    refusal = functools.partial(_refusal, me, connections)
    with _listen(place) as server:
        while len(connections) < place.num_processes - 1:
            server.settimeout(max(deadline_s - clock.monotonic_s(), 0.01))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, place.num_processes)) - connections.keys())
                for waiting, _ in connections.values():
                    waiting.close()
                raise _not_all(f"none of number {', '.join(map(str, missing))}", start_s) from None
            _forget_closed(connections)
            peer = admit(connection, me, place.token, refusal, clock)
            if peer is not None:
                connections[peer.process] = (connection, peer)
    links = {number: _linked(connection, peer, clock) for number, (connection, peer) in connections.items()}
    return Gang(me, links, clock, silent_s=silent_s, on_end=on_end)


def _listen(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port + 1), family=family)
    except OSError as error:
        raise PeerFailedError(
            f"process 0 cannot listen on {place.host}:{place.port + 1}: {error.strerror}",
            remedy="--coordinator must be an address of this host, its port and the next one free.",
        ) from error


def _forget_closed(connections: dict[int, tuple[socket.socket, Introduction]]) -> None:
    """Forget processes that came and went, so that each may come again while others are waited for."""
    for number in [number for number, (connection, _) in connections.items() if is_closed(connection)]:
        connection, peer = connections.pop(number)
        connection.close()
        logger.warning("%s went before all had come; it is waited for again", peer.spelled())


def _not_all(got: str, start_s: float) -> PeerFailedError:
    return PeerFailedError(
        "not all processes of the learner came",
        got=got,
        limit=f"learner.start_s={start_s:g}",
        remedy="Look at their logs, and at the --coordinator of each.",
    )


def _refusal(me: Introduction, connections: Mapping[int, object], other: Introduction) -> str:
    if other.run_id != me.run_id:
        return f"it trains run {other.run_id}, and this is {me.run_id}"
    if other.num_processes != me.num_processes or not 0 < other.process < me.num_processes:
        return (
            f"it is process {other.process} of {other.num_processes}, and this is one of {me.num_processes}"
        )
    if other.settings != me.settings:
        return "its settings differ: all processes must read the same run directory"
    if other.process in connections:
        return f"process {other.process} is here already"
    return ""


def _report(
    place: Place,
    me: Introduction,
    clock: Clock,
    start_s: float,
    silent_s: float,
    on_end: Callable[[Ended], None],
) -> Gang:
    """Connect to process 0, which may not listen yet, or be started again meanwhile."""
    deadline_s = clock.monotonic_s() + start_s
    while True:
        try:
            connection, leader = _enter(place, me, clock, start_s, deadline_s)
            return Gang(me, {0: _linked(connection, leader, clock)}, clock, silent_s=silent_s, on_end=on_end)
        except (OSError, WireError, msgspec.MsgspecError) as error:
            if clock.monotonic_s() > deadline_s:
                raise PeerFailedError(
                    f"process 0 of the learner cannot be reached at {place.host}:{place.port + 1}: {error}",
                    limit=f"learner.start_s={start_s:g}",
                    remedy="Look at its log, and at --coordinator.",
                ) from error
        clock.sleep(_RETRY_S)


def _enter(
    place: Place, me: Introduction, clock: Clock, start_s: float, deadline_s: float
) -> tuple[socket.socket, Introduction]:
    """Be admitted by process 0, and wait until all are: only then does it begin to speak."""
    connection = socket.create_connection((place.host, place.port + 1), timeout=_CONNECT_S)
    try:
        leader = introduce(connection, me, place.token)
        connection.settimeout(max(deadline_s - clock.monotonic_s(), 0.01))
        try:
            spoke = connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            raise _not_all("process 0 still waits for others", start_s) from None
        if not spoke:
            raise ConnectionResetError("it ended before all processes had come")
    except (OSError, ForebayError, msgspec.MsgspecError):
        connection.close()
        raise
    return connection, leader


def _linked(connection: socket.socket, peer: Introduction, clock: Clock) -> Callable[[Gang], Link]:
    return lambda gang: Link(connection, peer, clock, gang.took, gang.end)


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _end_process(ended: Ended) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"error: {ended.cause}\n")
        sys.stderr.flush()
    # The training thread may be inside a collective that never returns.
    os._exit(ended.exit_code)
