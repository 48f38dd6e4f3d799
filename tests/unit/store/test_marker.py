"""Whose directory is it: everything that is not ours is refused with exit code 2 and left as it was."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.errors import ConfigError, StoreVersionError
from forebay.store import StoreSettings, open_store
from forebay.store.marker import claim_directory


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def refused(path: Path, message: str, run_id: str = "run-1") -> None:
    before = snapshot(path)
    with pytest.raises(StoreVersionError, match=message) as error:
        open_store(StoreSettings(path=path), run_id)
    assert error.value.exit_code == 2
    assert snapshot(path) == before


def test_another_run_is_refused_and_nothing_touched(tmp_path: Path) -> None:
    open_store(StoreSettings(path=tmp_path), "run-1").close()
    refused(tmp_path, r"belongs to another run \(got run run-2, limit run run-1\)\. Use another run", "run-2")


def test_another_format_is_refused_and_nothing_touched(tmp_path: Path) -> None:
    open_store(StoreSettings(path=tmp_path), "run-1").close()
    (tmp_path / "store.json").write_text('{"format": 1, "run_id": "run-1"}')
    refused(tmp_path, r"another format \(got format 1, limit format 2\)")


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("marked", [False, True])
def test_c75_a_pickle_in_place_of_the_data_is_refused(tmp_path: Path, marked: bool) -> None:
    canary, store = tmp_path / "canary", tmp_path / "store"
    if marked:
        claim_directory(store, "run-1")
    store.mkdir(exist_ok=True)
    (store / "data.mdb").write_bytes(pickle.dumps(_Canary(canary)) * 100)
    refused(store, "not an lmdb file" if marked else "not a forebay store")
    assert not canary.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"format": "1", "run_id": "run-1"}', b"\x80\x04" * 50]
)
def test_a_damaged_marker_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.json").write_bytes(content)
    refused(tmp_path, "is not a forebay store's")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("notes")
    with pytest.raises(ConfigError, match="not a directory"):
        open_store(StoreSettings(path=tmp_path / "store"), "run-1")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(ConfigError, match="Choose another path"):
        open_store(StoreSettings(path=tmp_path / "notes" / "store"), "run-1")


def test_an_lmdb_store_needs_a_path() -> None:
    with pytest.raises(ConfigError, match=r"needs a directory\. Set store\.path"):
        open_store(StoreSettings(), "run-1")


def test_a_store_that_another_process_makes_between_two_looks_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def exists_and_another_makes_it(path: Path) -> bool:
        found = exists(path)
        if path.parent == tmp_path:
            monkeypatch.undo()
            claim_directory(tmp_path, "run-1")
            (tmp_path / "data.mdb").touch()
        return found

    monkeypatch.setattr(Path, "exists", exists_and_another_makes_it)
    claim_directory(tmp_path, "run-1")
    assert sorted(snapshot(tmp_path)) == ["data.mdb", "store.json"]
