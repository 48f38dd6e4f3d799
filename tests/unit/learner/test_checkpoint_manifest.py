import pytest

from forebay.errors import CheckpointError
from forebay.learner.checkpoint_directory import DirectoryFolder, DirectoryShelf
from forebay.learner.checkpoint_manifest import (
    FORMAT,
    CheckpointCursor,
    CheckpointManifest,
    hash_file,
    install,
    list_steps,
    read_manifest,
    step_directory,
    sweep,
    write_manifest,
)
from forebay.learner.checkpoint_shelf import find_best, retain, verify
from forebay.trajectory import PolicyVersion


def make(path, step, metric=None, content=b"state"):
    directory = step_directory(path, step)
    directory.mkdir(parents=True)
    (directory / "state.safetensors").write_bytes(content)
    cursor = CheckpointCursor(run_id="run", version=PolicyVersion(0, step))
    files = (hash_file(directory, "state.safetensors"),)
    manifest = CheckpointManifest(
        format=FORMAT, cursor=cursor, metric=metric, arrays=(), digest="0", files=files
    )
    write_manifest(directory, manifest, fsync=False)
    return directory


def test_a_whole_checkpoint_verifies_and_says_where_it_belongs(tmp_path):
    assert verify(DirectoryFolder(make(tmp_path, 7))).cursor.version == (0, 7)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "missing", "extra", "no manifest"])
def test_damage_is_named(tmp_path, damage):
    directory = make(tmp_path, 7)
    file = directory / "state.safetensors"
    if damage in {"cut", "empty", "flip"}:
        file.write_bytes({"cut": b"sta", "empty": b"", "flip": b"statd"}[damage])
    elif damage == "missing":
        file.unlink()
    elif damage == "extra":
        (directory / "weights.pkl").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
    else:
        (directory / "manifest.json").unlink()
    expected = {
        "extra": "weights.pkl",
        "missing": "extra file.*state.safetensors",
        "no manifest": "has no manifest",
    }
    with pytest.raises(CheckpointError, match=expected.get(damage, "step_7/state.safetensors is damaged")):
        verify(DirectoryFolder(directory))


def test_a_flipped_bit_anywhere_in_the_manifest_is_detected(tmp_path):
    directory = make(tmp_path, 7)
    path = directory / "manifest.json"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(CheckpointError):
            verify(DirectoryFolder(directory))


def test_retention_keeps_the_newest_and_moves_the_best_aside(tmp_path):
    for step, metric in [(10, 0.5), (20, 0.9), (30, None), (40, 0.7)]:
        make(tmp_path, step, metric)
        retain(DirectoryShelf(tmp_path, fsync=False), keep=2)
    assert list_steps(tmp_path) == (30, 40)
    assert list_steps(tmp_path, best=True) == (20,)
    assert verify(find_best(DirectoryShelf(tmp_path, fsync=False))).metric == 0.9
    make(tmp_path, 50, 0.95)
    retain(DirectoryShelf(tmp_path, fsync=False), keep=2)
    assert list_steps(tmp_path) == (40, 50)
    assert list_steps(tmp_path, best=True) == ()


def test_damaged_checkpoints_do_not_count_and_go_once_they_are_the_oldest(tmp_path):
    for step in (100, 200, 300, 150):
        make(tmp_path, step)
    retain(DirectoryShelf(tmp_path, fsync=False), keep=2, invalid={200, 300})
    assert list_steps(tmp_path) == (100, 150, 200, 300)
    make(tmp_path, 250)
    make(tmp_path, 350)
    retain(DirectoryShelf(tmp_path, fsync=False), keep=2, invalid={200, 300})
    assert list_steps(tmp_path) == (250, 300, 350)


def test_sweep_deletes_leftovers_and_puts_back_what_was_being_replaced(tmp_path):
    make(tmp_path, 7).rename(tmp_path / ".old-step_7")
    make(tmp_path, 8, content=b"new")
    make(tmp_path, 9).rename(tmp_path / ".old-step_8")
    make(tmp_path, 9).rename(tmp_path / ".trash-step_9")
    make(tmp_path, 9).rename(tmp_path / ".partial-step_9")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_7", "step_8"]
    assert (tmp_path / "step_8" / "state.safetensors").read_bytes() == b"new"


def test_install_replaces_an_older_checkpoint_of_the_same_step(tmp_path):
    target = make(tmp_path, 7)
    partial = tmp_path / ".partial-step_7"
    make(tmp_path / "elsewhere", 7, content=b"new").rename(partial)
    install(partial, target, fsync=True)
    assert (target / "state.safetensors").read_bytes() == b"new"
    assert not partial.exists()
    assert not (tmp_path / ".old-step_7").exists()


def test_another_layout_is_refused(tmp_path):
    directory = make(tmp_path, 7)
    manifest = read_manifest(directory)
    newer = CheckpointManifest(
        format=FORMAT + 1, cursor=manifest.cursor, metric=None, arrays=(), digest="0", files=()
    )
    write_manifest(directory, newer, fsync=False)
    with pytest.raises(CheckpointError, match=r"another layout \(got 3, limit 2\)"):
        read_manifest(directory)


def test_a_missing_directory_holds_no_steps(tmp_path):
    assert list_steps(tmp_path / "missing") == ()
