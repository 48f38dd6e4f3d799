import pytest

from forebay.telemetry.files import write_atomically


def test_a_file_is_replaced_whole_and_its_directory_made(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "directory"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory"]
