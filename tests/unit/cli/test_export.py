"""What `forebay export` refuses before it reads a checkpoint."""

from __future__ import annotations

import pytest

from tests.unit.cli.support import forebay


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--best", "--step", "3", "--version", "7"),
            "each of --best, --step and --version names what is exported (got --step 3 --version 7 --best). "
            "Give one of them.",
        ),
        (("--step", "3", "--best"), "names what is exported (got --step 3 --best)"),
        (
            ("--adapter", "--dtype", "bfloat16"),
            "adapters are written as they are trained (got --dtype bfloat16, limit float32). Leave",
        ),
        (("--to", "/proc/none/x"), "cannot write /proc/none/x (got No such file or directory, in /proc)"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_the_run_is_read(
    options: tuple[str, ...], message: str
) -> None:
    code, text = forebay("export", "no-such-run", "--to", "no-such-directory", *options)
    assert code == 2 and message in text


def test_one_choice_reaches_the_run() -> None:
    for option in (("--best",), ("--step", "0"), ("--version", "0"), ("--adapter", "--dtype", "float32")):
        code, text = forebay("export", "no-such-run", "--to", "no-such-directory", *option)
        assert code == 2 and "no-such-run is not a run directory" in text
