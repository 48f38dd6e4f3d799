"""C60: the disk fills up while a checkpoint is saved; the older one survives, the message says what to do."""

import re
import resource
import signal
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from forebay.errors import CheckpointError
from forebay.learner import checkpoint_directory
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.trajectory import PolicyVersion

MESSAGE = r"cannot save .*/step_2: .* \(got (\d+) bytes free, limit (\d+) bytes needed\)\. Free disk space"


def state_of(seed, size):
    noise = np.random.default_rng(seed).standard_normal(size)
    return {"w": jnp.asarray(noise, jnp.float32), "step": jnp.int32(seed)}


def cursor_of(step):
    return CheckpointCursor(run_id="run", version=PolicyVersion(0, step))


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("mounting a file system takes root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True, timeout=30)


@pytest.fixture
def small_files():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def assert_only_the_old_one_is_left(path, size):
    assert [entry.name for entry in path.iterdir()] == ["step_1"]
    restored = Checkpointer(path).restore_newest(state_of(0, size))
    assert restored.cursor.version == (0, 1)
    np.testing.assert_array_equal(restored.state["w"], state_of(1, size)["w"])


@pytest.mark.parametrize("looks_first", [True, False], ids=["refused", "failed halfway"])
def test_c60_a_three_megabyte_disk(small_disk, looks_first, monkeypatch):
    checkpointer = Checkpointer(small_disk)
    checkpointer.save(state_of(1, 450_000), cursor_of(1))
    if not looks_first:
        # As if somebody else had filled the disk meanwhile.
        monkeypatch.setattr(checkpoint_directory, "is_full", lambda path, num_bytes: False)
    with pytest.raises(CheckpointError) as caught:
        checkpointer.save(state_of(2, 450_000), cursor_of(2))
    free, needed = map(int, re.match(MESSAGE, str(caught.value)).groups())
    assert str(small_disk) in str(caught.value)
    assert 0 < free < needed
    assert needed > 1_800_000
    assert_only_the_old_one_is_left(small_disk, 450_000)


def test_c60_a_file_that_the_system_cuts(tmp_path, small_files):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(state_of(1, 450_000), cursor_of(1))
    small_files(1_000_000)
    with pytest.raises(CheckpointError, match=MESSAGE):
        checkpointer.save(state_of(2, 450_000), cursor_of(2))
    small_files(resource.RLIM_INFINITY)
    assert_only_the_old_one_is_left(tmp_path, 450_000)
