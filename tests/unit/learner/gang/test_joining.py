from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.learner.gang.joining import Place, place_of
from forebay.learner.gang.token import TOKEN_VARIABLE
from forebay.learner.settings import check_processes

SECRET = "x" * 16


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
