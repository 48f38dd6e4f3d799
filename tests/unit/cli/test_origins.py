from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.origins import Origin, check_origin
from forebay.errors import ConfigError


def test_what_a_run_began_with_is_noted_once_and_must_stay(tmp_path: Path) -> None:
    record = tmp_path / "base.json"
    check_origin(record, Origin("somewhere", "0123456789"), "the model")
    noted = record.read_bytes()
    check_origin(record, Origin("somewhere", "0123456789"), "the model")
    with pytest.raises(ConfigError) as refused:
        check_origin(record, Origin("elsewhere", "abcdefghij"), "the model")
    assert str(refused.value).startswith(
        f"the model is not the one that {tmp_path} was started with (got elsewhere, hash abcdefgh, "
        "limit somewhere, hash 01234567)."
    )
    assert record.read_bytes() == noted


@pytest.mark.parametrize("damaged", [b"{", b"\xff\xfe", b'{"source": 1, "digest": "0"}'])
def test_a_damaged_record_is_named_and_says_what_to_do(tmp_path: Path, damaged: bytes) -> None:
    record = tmp_path / "base.json"
    record.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"base\.json is damaged.*Remove it if the model is the one"):
        check_origin(record, Origin("somewhere", "0"), "the model")
