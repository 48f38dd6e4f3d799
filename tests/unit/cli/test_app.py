from __future__ import annotations

import errno

import pytest

from forebay.cli.app import explain
from tests.unit.cli.support import forebay


@pytest.mark.parametrize(
    ("number", "code", "remedy"),
    [(errno.ENOSPC, 4, "Free space"), (errno.EACCES, 2, "permissions"), (errno.EROFS, 2, "Check the path")],
)
def test_what_the_system_refuses_is_one_line_with_a_remedy(number: int, code: int, remedy: str) -> None:
    error = explain(OSError(number, "it refused", "/some/file"))
    assert error is not None
    assert error.exit_code == code
    assert str(error).startswith("/some/file: it refused. ") and remedy in str(error)


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    assert explain(OSError(errno.EBADF, "bad descriptor")) is None


def test_exit_codes_are_in_the_help() -> None:
    code, text = forebay("--help")
    assert code == 0
    for piece in ("0 done", "2 bad configuration", "3 no progress", "4 a peer", "130 interrupted"):
        assert piece in " ".join(text.split())
