import logging
import shutil

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
import safetensors.numpy

from forebay.errors import CheckpointError
from forebay.learner import checkpoint_directory
from forebay.learner.checkpoint import Checkpointer, Restored, load_best
from forebay.learner.checkpoint_manifest import CheckpointCursor, hash_file, read_manifest, write_manifest
from forebay.learner.checkpoint_stats import SaveTotals
from forebay.trajectory import PolicyVersion

PICKLE = b"cos\nsystem\n(S'touch canary'\ntR."


def cursor_of(step, incarnation=0, **counters):
    return CheckpointCursor(run_id="run", version=PolicyVersion(incarnation, step), counters=counters)


def state_of(seed):
    rng = np.random.default_rng(seed)
    params = {
        "w": jnp.asarray(rng.standard_normal((3, 4)), jnp.float32),
        "layers": {"b": jnp.asarray(rng.standard_normal(5), jnp.bfloat16)},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    _, opt_state = optimizer.update(params, optimizer.init(params), params)
    rng_key = jax.random.key_data(jax.random.key(seed))
    return {"params": params, "opt": opt_state, "step": jnp.int32(seed), "rng": rng_key}


def bits_of(state):
    return [(leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(state)]


@pytest.fixture(params=[False, True], ids=["inline", "background"])
def checkpointer(request, tmp_path):
    checkpointer = Checkpointer(tmp_path / "checkpoints", durability="os", background=request.param)
    yield checkpointer
    checkpointer.close()


def test_a_restored_state_is_the_saved_one_bit_for_bit(checkpointer):
    checkpointer.save(state_of(5), cursor_of(5, incarnation=2, tokens=123))
    restored = checkpointer.restore_newest(state_of(0))
    assert isinstance(restored, Restored)
    assert bits_of(restored.state) == bits_of(state_of(5))
    assert jax.tree.structure(restored.state) == jax.tree.structure(state_of(5))
    assert restored.cursor == cursor_of(5, incarnation=2, tokens=123)
    assert restored.skipped == ()
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored.state))


def test_a_template_of_shapes_alone_restores_onto_its_shardings(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(5), cursor_of(5))
    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state_of(0)
    )
    restored = checkpointer.restore_newest(template)
    assert bits_of(restored.state) == bits_of(state_of(5))
    assert {leaf.sharding for leaf in jax.tree.leaves(restored.state)} == {sharding}


def test_a_restored_state_may_be_donated_and_a_saved_one_may_be_donated_at_once(checkpointer):
    step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf, state), donate_argnums=0)
    state = state_of(5)
    checkpointer.save(state, cursor_of(5))
    jax.block_until_ready(step(state))
    restored = checkpointer.restore_newest(state_of(0)).state
    assert bits_of(restored) == bits_of(state_of(5))
    assert bits_of(step(restored)) == bits_of(step(state_of(5)))


def test_nothing_saved_restores_nothing(checkpointer):
    assert checkpointer.restore_newest(state_of(0)) is None
    assert checkpointer.oldest_verified_step() is None


def test_c57_the_newest_whole_checkpoint_wins_and_the_skipped_ones_are_named(tmp_path, caplog):
    checkpointer = Checkpointer(tmp_path, keep=3, durability="os")
    checkpointer.save(state_of(100), cursor_of(100))
    checkpointer.save(state_of(200), cursor_of(200))
    state = tmp_path / "step_200" / "state.safetensors"
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    (tmp_path / "step_300").mkdir()
    (tmp_path / "step_400.tmp").mkdir()

    resumed = Checkpointer(tmp_path, keep=3, durability="os")
    with caplog.at_level(logging.WARNING):
        restored = resumed.restore_newest(state_of(0))
    assert bits_of(restored.state) == bits_of(state_of(100))
    assert restored.cursor.version == (0, 100)
    assert [text.split(":")[0] for text in restored.skipped] == ["step_300", "step_200"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "step_300 has no manifest" in warnings[0]
    assert "step_200/state.safetensors is damaged" in warnings[1]
    assert resumed.oldest_verified_step() == 100


def test_a_damaged_step_is_saved_anew_when_the_run_gets_there_again(tmp_path):
    Checkpointer(tmp_path, durability="os").save(state_of(100), cursor_of(100))
    (tmp_path / "step_200").mkdir()
    checkpointer = Checkpointer(tmp_path, durability="os")
    assert checkpointer.restore_newest(state_of(0)).cursor.version == (0, 100)
    checkpointer.save(state_of(200), cursor_of(200, incarnation=1))
    assert checkpointer.restore_newest(state_of(0)).cursor.version == (1, 200)
    assert checkpointer.oldest_verified_step() == 100


def test_a_flipped_bit_is_detected(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    checkpointer.save(state_of(2), cursor_of(2))
    state = tmp_path / "step_2" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 0x10
    state.write_bytes(data)
    restored = checkpointer.restore_newest(state_of(0))
    assert restored.cursor.version == (0, 1)
    assert "is damaged" in restored.skipped[0]


def test_if_no_checkpoint_is_whole_the_run_does_not_silently_start_over(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    (tmp_path / "step_300").mkdir()
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is whole \(got step_300: step_300 has no"
    ):
        checkpointer.restore_newest(state_of(0))


def test_c75_a_pickle_in_a_checkpoint_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpointer = Checkpointer(tmp_path / "checkpoints", durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    directory = tmp_path / "checkpoints" / "step_1"
    manifest = read_manifest(directory)
    (directory / "state.safetensors").write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpointer.restore_newest(state_of(0))
    # Even if the manifest vouches for it.
    (directory / "manifest.json").unlink()
    forged = msgspec.structs.replace(manifest, files=(hash_file(directory, "state.safetensors"),))
    write_manifest(directory, forged, fsync=False)
    with pytest.raises(CheckpointError, match="cannot be restored"):
        checkpointer.restore_newest(state_of(0))
    assert not (tmp_path / "canary").exists()


def test_retention_keeps_the_newest_and_the_best(checkpointer, tmp_path):
    for step, metric in [(10, 0.5), (20, 0.9), (30, 0.4), (40, 0.6)]:
        checkpointer.save(state_of(step), cursor_of(step), metric=metric)
    checkpointer.wait()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "best_20",
        "step_30",
        "step_40",
    ]
    assert checkpointer.oldest_verified_step() == 30
    assert bits_of(load_best(tmp_path / "checkpoints", state_of(0)).state) == bits_of(state_of(20))
    assert checkpointer.restore_newest(state_of(0)).cursor.version == (0, 40)


def test_saving_the_same_arrays_again_renews_cursor_and_metric_only(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    before = (tmp_path / "step_1" / "state.safetensors").stat().st_ino
    checkpointer.save(state_of(1), cursor_of(1, incarnation=1), metric=0.5)
    assert (tmp_path / "step_1" / "state.safetensors").stat().st_ino == before
    assert load_best(tmp_path, state_of(0)).cursor.version == (1, 1)
    checkpointer.save(state_of(9), cursor_of(1))
    assert bits_of(checkpointer.restore_newest(state_of(0)).state) == bits_of(state_of(9))


def test_without_an_evaluation_there_is_no_best(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    with pytest.raises(CheckpointError, match="was evaluated"):
        load_best(tmp_path, state_of(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state["params"].update(w=jnp.zeros((3, 5))),
            r"\['params'\]\['w'\] differs \(got float32\[3, 4\], limit float32\[3, 5\]",
        ),
        (lambda state: state.update(step=jnp.float32(0)), r"\['step'\] differs .*int32.*float32"),
        (lambda state: state.pop("rng"), r"\['rng'\] differs .*limit nothing"),
        (lambda state: state.update(more=jnp.zeros(1)), r"\['more'\] differs \(got nothing"),
    ],
)
def test_another_models_state_is_refused_with_the_array_that_differs(tmp_path, change, message):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    template = state_of(0)
    change(template)
    with pytest.raises(CheckpointError, match=message):
        checkpointer.restore_newest(template)


@pytest.mark.parametrize("leaf", [jax.random.key, lambda _: 3, lambda _: "text"])
def test_leaves_that_would_not_come_back_are_refused_at_save(tmp_path, leaf):
    checkpointer = Checkpointer(tmp_path, durability="os")
    with pytest.raises(CheckpointError, match=r"state\['odd'\] cannot be saved"):
        checkpointer.save({"odd": leaf(0)}, cursor_of(1))


def test_an_error_in_the_background_surfaces_at_the_next_call(tmp_path):
    checkpointer = Checkpointer(tmp_path / "checkpoints", durability="os", background=True)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_bytes(b"in the way")
    checkpointer.save(state_of(1), cursor_of(1))
    with pytest.raises(CheckpointError, match="cannot save"):
        checkpointer.wait()
    checkpointer.close()


def test_the_state_is_a_safetensors_file_that_other_programs_read(tmp_path):
    Checkpointer(tmp_path).save({"w": jnp.arange(3.0), "rng": jnp.uint32(7)}, cursor_of(1))
    loaded = safetensors.numpy.load_file(tmp_path / "step_1" / "state.safetensors")
    assert {name: array.tolist() for name, array in loaded.items()} == {"['w']": [0, 1, 2], "['rng']": 7}


def test_arrays_of_a_template_without_devices_come_back_as_writable_numpy(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save({"w": np.arange(3.0), "empty": np.zeros((0, 2))}, cursor_of(1))
    state = checkpointer.restore_newest({"w": np.zeros(3), "empty": np.ones((0, 2))}).state
    state["w"] += 1
    assert (state["w"].tolist(), state["empty"].shape) == ([1, 2, 3], (0, 2))


def test_a_type_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"the state cannot be saved: tensor \['z'\]"):
        Checkpointer(tmp_path).save({"z": jnp.zeros(2, jnp.complex64)}, cursor_of(1))


def test_slices_that_leave_a_hole_or_lie_on_one_another_are_refused_by_the_array(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    directory = tmp_path / "step_1"
    manifest = read_manifest(directory)
    whole = next(part for part in manifest.slices if part.array == "['params']['w']")
    others = tuple(part for part in manifest.slices if part is not whole)
    half = msgspec.structs.replace(whole, shape=(3, 2))
    for parts in [(), (half,), (whole, half), (half, half), (msgspec.structs.replace(whole, start=(0, 1)),)]:
        forged = msgspec.structs.replace(manifest, slices=(*others, *parts))
        write_manifest(directory, forged, fsync=False)
        with pytest.raises(CheckpointError, match=r"slices of \['params'\]\['w'\] .* do not make up"):
            checkpointer.restore_newest(state_of(0))


def test_a_slice_is_checked_even_where_the_manifest_vouches_for_the_file(tmp_path):
    checkpointer = Checkpointer(tmp_path, durability="os")
    checkpointer.save(state_of(1), cursor_of(1))
    directory = tmp_path / "step_1"
    manifest = read_manifest(directory)
    state = directory / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    forged = msgspec.structs.replace(manifest, files=(hash_file(directory, state.name),))
    write_manifest(directory, forged, fsync=False)
    with pytest.raises(CheckpointError, match="does not hold the arrays that were saved"):
        checkpointer.restore_newest(state_of(0))


def test_every_save_reports_what_it_cost_and_the_totals_are_forgotten_once_read(tmp_path):
    totals = SaveTotals()
    checkpointer = Checkpointer(
        tmp_path, durability="os", background=True, on_saved=lambda step, report: totals.add(report)
    )
    assert totals.drain() == {}
    checkpointer.save(state_of(1), cursor_of(1))
    checkpointer.save(state_of(2), cursor_of(2))
    checkpointer.close()
    got = totals.drain()
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state_of(1)))
    assert got["checkpoint.snapshot_bytes"] == 2 * num_bytes
    assert got["checkpoint.written_bytes"] > 2 * num_bytes
    assert min(got["checkpoint.waited_s"], got["checkpoint.snapshot_s"], got["checkpoint.write_s"]) >= 0
    assert totals.drain() == {}


def test_a_failed_save_in_the_background_is_seen_by_whoever_checks(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path, durability="os", background=True)
    checkpointer.check()
    checkpointer.save(state_of(1), cursor_of(1))
    checkpointer.wait()
    monkeypatch.setattr(checkpoint_directory, "is_full", lambda path, num_bytes: True)
    checkpointer.save(state_of(2), cursor_of(2))
    pending = checkpointer._pending
    assert isinstance(pending.exception(60), CheckpointError)
    with pytest.raises(CheckpointError, match="step_2: No space left on device"):
        checkpointer.check()
    checkpointer.check()  # it is said once
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_1"]


def test_a_checkpoint_that_cannot_be_renewed_or_deleted_is_an_error_of_the_checkpoint(tmp_path):
    path = tmp_path / "checkpoints"
    checkpointer = Checkpointer(path, keep=1)
    checkpointer.save(state_of(1), cursor_of(1))
    (path / "step_1" / ".partial-manifest.json").mkdir()
    with pytest.raises(
        CheckpointError, match=r"cannot change .*/step_1: Is a directory \(got \d+ bytes free"
    ):
        checkpointer.save(state_of(1), cursor_of(1, incarnation=1))
    (path / "step_1" / ".partial-manifest.json").rmdir()
    (path / ".trash-step_1").mkdir()
    (path / ".trash-step_1" / "held").touch()
    with pytest.raises(CheckpointError, match=r"cannot change .*/step_1: Directory not empty"):
        checkpointer.save(state_of(2), cursor_of(2))
    restored = Checkpointer(path).restore_newest(state_of(0))
    assert restored.cursor == cursor_of(2)
