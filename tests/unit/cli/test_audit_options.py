"""Options that nothing would look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.audit_options import refuse_unused
from forebay.errors import ConfigError
from tests.unit.cli.support import forebay

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "option", "limit"),
    [
        ((URL, "--environment", "x"), "--environment", "environment of a TOML file"),
        ((URL, "--concurrency", "1,4,16,64"), "--concurrency", "environment of a TOML file"),
        ((URL, "--policy", "auto"), "--policy", "environment of a TOML file"),
        ((URL, "--action-length", "3"), "--action-length", "environment of a TOML file"),
        ((URL, "--generator", URL), "--generator", "generator, weights of a TOML file"),
        (("calculator", "--generator", URL), "--generator", "generator, weights"),
        (("calculator", "--token-env", "T"), "--token-env", "generator"),
        (("calculator", "--requests", "1"), "--requests", "generator"),
        (("calculator", "--prompt-tokens", "128"), "--prompt-tokens", "generator"),
        (("run.toml", "--part", "store", "--generator", URL), "--generator", "generator, weights"),
        (("run.toml", "--part", "learner", "--action", "1"), "--action", "environment"),
        (("--part", "learner"), "--part", "environment, generator, weights, store, learner"),
        (
            ("--seconds", "3", "--out", "p.json"),
            "--seconds",
            "environment, generator, weights, store, learner",
        ),
        (("--json",), "--json", "environment, generator, weights, store, learner"),
    ],
)
def test_what_nothing_looks_at_is_refused_before_measuring(
    arguments: tuple[str, ...], option: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = forebay("audit", *arguments)
    assert code == 2
    assert text.startswith(f"nothing that is measured looks at {option} (got a measurement of ")
    assert f", limit {limit}). Leave out {option}" in text
    assert not list(tmp_path.iterdir())


def test_files_are_always_looked_at_and_options_by_one_part_that_is_measured() -> None:
    refuse_unused(["target", "out", "merge", "replace"], [])
    refuse_unused(["token_env", "action", "generator"], ["environment", "generator"])
    refuse_unused(["token_env", "requests"], ["generator"], is_address=True)
    with pytest.raises(ConfigError, match="a measurement of nothing"):
        refuse_unused(["out", "requests"], [])
