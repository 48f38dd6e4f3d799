from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from forebay.errors import ModelError
from forebay.models.checkpoint_io import load_model, read_tensors, save_model
from forebay.models.hf import to_hf_tensors
from tests.unit.models import tiny

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


@pytest.mark.parametrize(("max_shard_bytes", "files"), [(10**9, 1), (8_000, 3)])
def test_round_trip(tmp_path: Path, max_shard_bytes: int, files: int) -> None:
    params = tiny.params()
    tensors = to_hf_tensors(params, tiny.CONFIG)
    save_model(tmp_path / "model", tiny.CONFIG, tensors, max_shard_bytes=max_shard_bytes)
    config, loaded = load_model(tmp_path / "model")
    assert config == tiny.CONFIG
    assert jax.tree.all(jax.tree.map(lambda a, b: (np.asarray(a) == b).all(), params, loaded))
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert sum(name.endswith(".safetensors") for name in names) == files
    assert ("model.safetensors.index.json" in names) == (files > 1)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_bfloat16_files_are_read(tmp_path: Path) -> None:
    save_file({"a": np.array([1.5, -2.0], ml_dtypes.bfloat16)}, tmp_path / "model.safetensors")
    tensor = read_tensors(tmp_path)["a"]
    assert tensor.dtype == ml_dtypes.bfloat16
    assert tensor.astype(np.float32).tolist() == [1.5, -2.0]


def test_an_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="exists already"):
        save_model(tmp_path, tiny.CONFIG, to_hf_tensors(tiny.params(), tiny.CONFIG))


def test_whoever_may_read_the_configuration_may_read_the_weights(tmp_path: Path) -> None:
    save_model(tmp_path / "m", tiny.CONFIG, to_hf_tensors(tiny.params(), tiny.CONFIG), files={"a.txt": b"b"})
    assert len({path.stat().st_mode for path in (tmp_path / "m").iterdir()}) == 1
    assert (tmp_path / "m" / "a.txt").read_bytes() == b"b"


def test_weights_are_rounded_to_the_type_that_config_json_names(tmp_path: Path) -> None:
    tensors = to_hf_tensors(tiny.params(), tiny.CONFIG)
    save_model(tmp_path / "m", tiny.CONFIG, tensors, dtype="bfloat16")
    saved = read_tensors(tmp_path / "m")
    assert {tensor.dtype for tensor in saved.values()} == {np.dtype("bfloat16")}
    norm, exact = saved["model.norm.weight"].astype(np.float32), tensors["model.norm.weight"]
    np.testing.assert_allclose(norm, exact, rtol=2**-8)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "tiny-tied", tmp_path / "model"))


def test_a_truncated_file_is_named(copied: Path) -> None:
    shard = copied / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"damaged safetensors file .*model-00002.* bytes\).*Download"):
        load_model(copied)


def test_a_missing_shard_is_named(copied: Path) -> None:
    (copied / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model weights not found: .*model-00001"):
        load_model(copied)


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"model.norm.weight": "../secret.safetensors"}, "points outside its directory"),
        ({"nothing.weight": "model-00001-of-00002.safetensors"}, "no file holds: nothing.weight"),
        (["model.norm.weight"], "is not a safetensors index"),
    ],
)
def test_a_bad_index_is_refused(copied: Path, weight_map: object, named: str) -> None:
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=named):
        load_model(copied)
