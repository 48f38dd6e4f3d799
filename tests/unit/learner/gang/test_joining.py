from __future__ import annotations

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from forebay.cli.roles import free_port
from forebay.clock import SystemClock
from forebay.errors import ConfigError, PeerFailedError
from forebay.learner.gang.gang import Ended, Gang
from forebay.learner.gang.joining import Place, _assemble, _report, place_of
from forebay.learner.gang.link import Introduction, introduce
from forebay.learner.gang.token import TOKEN_VARIABLE
from forebay.learner.settings import check_processes

SECRET = "x" * 16
PATIENCE_S = 30.0


class Meeting:
    """Three processes, as threads of one, that meet without JAX."""

    def __init__(self, start_s: float = PATIENCE_S) -> None:
        self.port = free_port(2)
        self.ended: list[Ended] = []
        self._pool = ThreadPoolExecutor(3)
        self._limits_s = (start_s, PATIENCE_S)

    def who(self, process: int) -> Introduction:
        return Introduction(process, 3, "run", "settings", "here", 1000 + process)

    def begin(self, process: int) -> Future[Gang]:
        place = Place(process, 3, "127.0.0.1", self.port, SECRET)
        meet = _assemble if process == 0 else _report
        return self._pool.submit(
            meet, place, self.who(process), SystemClock(), *self._limits_s, self.ended.append
        )

    def connect(self, process: int) -> socket.socket:
        """Be admitted as a process that does nothing more."""
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port + 1))
            except ConnectionRefusedError:
                time.sleep(0.01)
                continue
            try:
                introduce(connection, self.who(process), SECRET)
            except PeerFailedError:
                connection.close()
                raise
            return connection

    def admitted(self, process: int) -> Future[Gang]:
        """Begin as a process, and return once process 0 has admitted it: whoever else says so is refused."""
        met = self.begin(process)
        while True:
            if met.done() and met.exception() is not None:  # the one that asked came first
                met = self.begin(process)
            try:
                self.connect(process).close()
            except PeerFailedError:
                return met

    def close(self, *met: Future[Gang]) -> None:
        for gang in met:
            gang.result(PATIENCE_S).close()
        self._pool.shutdown()


def test_whoever_comes_first_waits_for_the_last_before_silence_counts() -> None:
    meeting = Meeting()
    met = [meeting.begin(0), meeting.admitted(1)]
    assert not met[1].done()  # it watches nobody yet: process 0 says nothing before all are here
    met.append(meeting.begin(2))
    assert [gang.result(PATIENCE_S).process for gang in met] == [0, 1, 2]
    assert meeting.ended == []
    meeting.close(*met)


def test_a_process_that_went_before_all_had_come_may_come_again(caplog: pytest.LogCaptureFixture) -> None:
    meeting = Meeting()
    leader = meeting.begin(0)
    with meeting.connect(1), pytest.raises(PeerFailedError, match="process 1 is here already"):
        meeting.connect(1)
    met = [leader, meeting.begin(1), meeting.begin(2)]
    assert [gang.result(PATIENCE_S).process for gang in met] == [0, 1, 2]
    assert "learner process 1 (pid 1001 on here) went before all had come" in caplog.text
    meeting.close(*met)


def test_all_say_that_not_all_came() -> None:
    meeting = Meeting(start_s=1.0)
    met = [meeting.begin(0), meeting.begin(1)]
    said = [str(gang.exception(PATIENCE_S)) for gang in met]
    assert "not all processes of the learner came (got none of number 2, limit learner.start_s=1)" in said[0]
    # Process 0 may give up first.
    assert "not all processes of the learner came" in said[1] or "cannot be reached" in said[1]
    meeting.close()


def test_a_place_is_what_options_and_variables_name() -> None:
    environment = {TOKEN_VARIABLE: SECRET, "JAX_LOCAL_DEVICE_IDS": "2,3"}
    assert place_of(1, 4, "10.0.0.1:9410", environment) == Place(1, 4, "10.0.0.1", 9410, SECRET, (2, 3))
    assert place_of(0, 2, "[::1]:9410", {}) == Place(0, 2, "::1", 9410, "")


def test_c76_only_on_one_machine_does_a_learner_need_no_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9"):
        Place(0, 2, host, 9410, "").check()
    for host in ("10.0.0.1", "learner-0.cluster", "::"):
        with pytest.raises(ConfigError, match=r"need a token \(got FOREBAY_GANG_TOKEN of 3 letters"):
            Place(0, 2, host, 9410, "abc").check()
        Place(0, 2, host, 9410, SECRET).check()


@pytest.mark.parametrize("coordinator", [None, "", "9410", "host:", "host:abc", "host:65535", ":9410"])
def test_an_address_that_nobody_can_meet_at_is_refused(coordinator: str | None) -> None:
    with pytest.raises(ConfigError, match="need an address to meet at"):
        place_of(0, 2, coordinator, {})


def test_a_process_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"got --process-id 2, limit 0 to 1"):
        place_of(2, 2, "127.0.0.1:9410", {})


def test_p9_a_mesh_is_divided_evenly_or_refused() -> None:
    check_processes(8, 4)
    with pytest.raises(ConfigError, match=r"got a mesh of 6 devices for 4 processes, limit a multiple of 4"):
        check_processes(6, 4)
