from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import msgspec
import numpy as np
import pytest

from forebay.clock import ManualClock
from forebay.errors import CheckpointError, PeerFailedError, WireError
from forebay.learner.checkpoint_slices import StateSlice
from forebay.learner.gang.frames import Frame, receive_frame
from forebay.learner.gang.gathering import Gathering
from forebay.learner.gang.link import admit, introduce
from tests.unit.learner.gang.gangs import Threads

PATIENCE_S = 30.0


def wait_for(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_what_is_gathered_comes_in_order_and_what_is_broadcast_comes_to_all() -> None:
    with Threads(3) as threads, ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            values = list(pool.map(lambda g: g.gather("checkpoint", str(g.process).encode()), threads.gangs))
            assert values == [[b"0", b"1", b"2"], [], []]
            values = list(pool.map(lambda g: g.broadcast("checkpoint", b"%d" % g.process), threads.gangs))
            assert values == [b"0"] * 3


def test_topics_do_not_wait_for_one_another() -> None:
    with Threads(2) as threads:
        leader, other = threads.gangs
        leader.tell(Frame("batch", b"1"))
        leader.tell(Frame("order", b"2"))
        leader.tell(Frame("batch", b"3"))
        assert [other.hear(topic).body for topic in ("order", "batch", "batch")] == [b"2", b"1", b"3"]


def test_a_process_that_dies_ends_every_other_one_with_its_name() -> None:
    with Threads(3) as threads:
        threads.sockets[1][1].shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that was killed
        wait_for(lambda: {0, 1} <= threads.ended.keys())
        assert "learner process 2 (pid 1002 on here) is gone" in threads.ended[0].cause
        assert threads.ended[0].exit_code == 4
        # Those that have no connection to it are told by process 0.
        assert "process 0" in threads.ended[1].cause
        assert "process 2 (pid 1002 on here) is gone" in threads.ended[1].cause
        with pytest.raises(PeerFailedError, match="process 2"):
            threads.gangs[0].hear("checkpoint", 2)


def test_who_fails_says_why_and_who_is_done_says_farewell() -> None:
    with Threads(2) as threads:
        threads.gangs[1].close("checkpoint: the disk is full")
        wait_for(lambda: 0 in threads.ended)
        assert "it failed: checkpoint: the disk is full" in threads.ended[0].cause
    with Threads(2) as threads:
        threads.gangs[1].close()
        with pytest.raises(PeerFailedError, match="has said farewell"):
            threads.gangs[0].hear("order", 1)
        threads.gangs[0].close()
        assert threads.ended == {}


def test_a_process_that_falls_silent_counts_as_gone() -> None:
    with Threads(2, silent_s=1.0) as threads:
        threads.gangs[1]._closed.set()  # its watch, and with it its heart, stops
        wait_for(lambda: 0 in threads.ended)
        assert "nothing was heard of it for" in threads.ended[0].cause


def test_an_order_that_nobody_follows_ends_the_run_with_3_and_says_who_does_what() -> None:
    with Threads(2) as threads:
        threads.gangs[1].now("does: train step 7")
        threads.gangs[0].now("does: train step 7", 1.0)
        wait_for(lambda: 0 in threads.ended)
        assert threads.ended[0].exit_code == 3
        assert "this process does: train step 7; process 1 does: train step 7 for" in threads.ended[0].cause


def test_a_stop_asked_of_any_process_reaches_process_0() -> None:
    with Threads(3) as threads:
        assert not threads.gangs[0].stop_asked
        threads.gangs[2].ask_to_stop()
        wait_for(lambda: threads.gangs[0].stop_asked)


def shaking_hands(tokens: tuple[str, str], refusal: str = ""):
    threads, (ours, theirs) = Threads(2), socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        met = pool.submit(introduce, theirs, threads.who(1), tokens[1])
        admitted = admit(ours, threads.who(0), tokens[0], lambda _: refusal)
        return admitted, met.exception(PATIENCE_S), threads


def test_c76_only_who_knows_the_token_is_admitted() -> None:
    admitted, error, threads = shaking_hands(("secret", "secret"))
    assert (admitted, error) == (threads.who(1), None)
    admitted, error, _ = shaking_hands(("secret", "guess"))
    assert admitted is None
    assert isinstance(error, PeerFailedError)
    assert "does not know the token" in str(error)
    admitted, error, _ = shaking_hands(("secret", "secret"), "its settings differ")
    assert admitted is None
    assert "its settings differ" in str(error)


def test_whoever_makes_no_handshake_is_turned_away() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        theirs.shutdown(socket.SHUT_WR)
        assert admit(ours, Threads(2).who(0), "secret", lambda _: "") is None


@pytest.mark.parametrize("shape", [[0, 1 << 62], [0, (1 << 64) - 1]])
def test_c75_a_stranger_ends_nobody_with_an_array_that_cannot_be(shape: list[int]) -> None:
    header = msgspec.json.encode(["handshake", b"", [["float32", shape]], ""])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"FBG1" + len(header).to_bytes(4, "little") + header)
        assert admit(ours, Threads(2).who(0), "secret", lambda _: "") is None


def test_a_handshake_that_drips_in_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    ours, theirs = socket.socketpair()

    def drip() -> None:
        receive_frame(theirs)
        theirs.sendall(b"F")
        clock.advance(6.0)
        theirs.sendall(b"B")
        assert theirs.recv(1) == b""

    with ours, theirs, ThreadPoolExecutor(1) as pool:
        dripping = pool.submit(drip)
        assert admit(ours, Threads(2).who(0), "secret", lambda _: "", clock) is None
        assert "it took longer than 5 s" in caplog.text
        dripping.result(PATIENCE_S)


def test_who_waits_for_a_frame_looks_at_its_own_failures_meanwhile() -> None:
    def failed() -> None:
        raise CheckpointError("the disk is full")

    with Threads(2) as threads:
        with pytest.raises(CheckpointError):
            threads.gangs[1].hear("order", check=failed)
        threads.gangs[0].tell(Frame("order", b"1"))
        assert threads.gangs[1].hear("order", check=failed).body == b"1"


def test_process_0_asks_for_the_next_slice_when_it_has_one() -> None:
    """Three slices are held back by two processes; process 0 has not more than one of each before it asks."""
    abstract = {"w": jax.ShapeDtypeStruct((6,), np.float32)}
    with Threads(3) as threads:
        mine = {"w": np.arange(6, dtype=np.float32)}
        giving = Gathering(threads.gangs[2], abstract)
        slices = [StateSlice("['w']", (at,), mine["w"][at : at + 1], (6,)) for at in range(3, 6)]
        given = giving._executor.submit(giving._give, tuple(slices))
        link = threads.gangs[0]._links[2]
        wait_for(lambda: len(link._inbox["slice"]) == 1)
        gathered = Gathering(threads.gangs[0], abstract)
        threads.gangs[1].tell(Frame("slice", b'{"path": "[\'w\']", "start": [0]}', (mine["w"][:3],)))
        assert not given.done()
        assert len(link._inbox["slice"]) == 1
        threads.gangs[1].tell(Frame("slice"))
        got = gathered.start({}).result(PATIENCE_S)
        assert np.array_equal(got["w"], mine["w"])
        for gathering in (giving, gathered):
            gathering.close()


def test_parameters_are_gathered_slice_by_slice() -> None:
    """Both halves of an array as two processes would hold them; arrays that all have come from process 0."""
    abstract = {"w": jax.ShapeDtypeStruct((4, 3), np.float32), "b": jax.ShapeDtypeStruct((2,), np.float32)}
    whole = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.array([7, 8], np.float32)}
    with Threads(2) as threads:
        gathered = Gathering(threads.gangs[0], abstract)
        threads.gangs[1].tell(Frame("slice", b'{"path": "[\'w\']", "start": [2, 0]}', (whole["w"][2:],)))
        threads.gangs[1].tell(Frame("slice", b'{"path": "[\'w\']", "start": [0, 0]}', (whole["w"][:2],)))
        threads.gangs[1].tell(Frame("slice"))
        got = gathered.start({"b": whole["b"]}).result(PATIENCE_S)
        gathered.close()
        assert all(np.array_equal(got[name], whole[name]) for name in whole)
        hole = Gathering(threads.gangs[0], abstract)
        threads.gangs[1].tell(Frame("slice"))
        assert isinstance(hole.start({"b": whole["b"]}).exception(PATIENCE_S), WireError)
        hole.close()


def test_a_slice_that_fits_nothing_is_refused() -> None:
    abstract = {"w": jax.ShapeDtypeStruct((4,), np.float32)}
    for place in ('{"path": "[\'v\']", "start": [0]}', '{"path": "[\'w\']", "start": [3]}'):
        with Threads(2) as threads:
            gathered = Gathering(threads.gangs[0], abstract)
            threads.gangs[1].tell(Frame("slice", place.encode(), (np.zeros(2, np.float32),)))
            assert isinstance(gathered.start({}).exception(PATIENCE_S), WireError)
            gathered.close()


def test_threads_of_a_gang_end_with_it() -> None:
    def running() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("gang-")}

    before = running()
    with Threads(2):
        own = running() - before
        assert len(own) == 4  # a watch and a reader in each process
    wait_for(lambda: not own & running())
