import pytest

from forebay.errors import ConfigError
from forebay.telemetry.files import require_place, write_atomically


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


def test_a_directory_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as refused:
        write_atomically(tmp_path / "file" / "b.json", b"new")
    assert refused.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/a.json", r"cannot write .*file/a.json \(got Not a directory, in .*file\)"),
        ("file/a/b/c.json", r"cannot write .*c.json \(got Not a directory, in .*file\)"),
        ("directory", "is a directory"),
        ("x" * 300, "got File name too long"),
        ("/proc/a.json", r"cannot write /proc/a.json \(got No such file or directory, in /proc\)"),
        ("/proc/none/a.json", "cannot write /proc/none/a.json"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path, name, message):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError, match=message):
        require_place(tmp_path / name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["directory", "file"]


def test_a_place_may_hold_a_file_unless_it_must_be_new(tmp_path):
    (tmp_path / "file").write_text("")
    require_place(tmp_path / "file")
    require_place(tmp_path / "new" / "deep" / "file", is_new=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("file", "dangling"):
        with pytest.raises(ConfigError, match=f"{name} exists already"):
            require_place(tmp_path / name, is_new=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dangling", "file"]
