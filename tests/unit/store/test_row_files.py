from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay.store.row_files import parquet_schema, read_rows, row_file
from forebay.store.rows import from_row
from tests.unit.store.test_rows import row


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"rows{suffix}"
    with pytest.raises(KeyboardInterrupt):
        _write_and_stop(path)
    assert os.listdir(tmp_path) == []
    with row_file(path) as file:
        for _ in range(3):
            file.write(row())
        assert not path.exists()
    assert [from_row(one).trajectory_id for one in read_rows(path)] == ["g0.0.0"] * 3
    with pytest.raises(ConfigError, match="exists already"), row_file(path):
        pass
    with row_file(path, force=True):
        pass
    assert list(read_rows(path)) == [] and os.listdir(tmp_path) == [path.name]


def _write_and_stop(path: Path) -> None:
    with row_file(path) as file:
        file.write(row())
        raise KeyboardInterrupt


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigError, match="exists already"), row_file(path):
        path.write_text("mine")
    assert path.read_text() == "mine" and os.listdir(tmp_path) == [path.name]


def test_parquet_names_its_schema_and_its_columns_are_those_of_a_row() -> None:
    pytest.importorskip("pyarrow")
    schema = parquet_schema()
    assert schema.metadata == {b"forebay.trajectory": b"1"}
    assert schema.names == list(row())
