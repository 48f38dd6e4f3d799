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
from forebay.models.checkpoint_io import check_model, load_model, read_tensors, save_model
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


def index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def weight_map(directory: Path) -> dict[str, str]:
    return json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"model.norm.weight": "../secret.safetensors"}, "points outside its directory"),
        ({"nothing.weight": "model-00001-of-00002.safetensors"}, "no file holds: nothing.weight"),
        (["model.norm.weight"], "is not a safetensors index"),
    ],
)
def test_a_bad_index_is_refused(copied: Path, weight_map: object, named: str) -> None:
    index(copied, weight_map)
    with pytest.raises(ModelError, match=named):
        load_model(copied)


def test_c80_a_tensor_that_the_index_leaves_out_or_puts_elsewhere_is_named(copied: Path) -> None:
    whole = weight_map(copied)
    index(copied, {name: file for name, file in whole.items() if name != "model.norm.weight"})
    with pytest.raises(ModelError, match=r"does not name tensors that its files hold: model\.norm\.weight"):
        load_model(copied)
    other = next(file for file in whole.values() if file != whole["model.norm.weight"])
    index(copied, whole | {"model.norm.weight": other})
    with pytest.raises(ModelError, match=r"names the wrong file for: model\.norm\.weight"):
        load_model(copied)


def test_c80_a_tensor_in_two_shards_is_named(copied: Path) -> None:
    third = copied / "model-00003-of-00003.safetensors"
    tensors = {"model.norm.weight": np.ones(16, np.float32), "extra": np.ones(1, np.float32)}
    save_file(tensors, third)
    index(copied, weight_map(copied) | {"extra": third.name})
    with pytest.raises(ModelError, match=r"hold a tensor twice: model\.norm\.weight"):
        load_model(copied)


def test_c80_two_models_in_one_directory_are_refused(copied: Path) -> None:
    save_file({"model.norm.weight": np.ones(16, np.float32)}, copied / "model.safetensors")
    with pytest.raises(ModelError, match="holds two models"):
        load_model(copied)


def test_c80_weights_that_are_no_floats_or_not_finite_are_named(copied: Path) -> None:
    save_file({"model.norm.weight": np.ones(16, np.int8)}, copied / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight .*got I8, limit F64, F32, F16, BF16"):
        load_model(copied)
    save_file({"a": np.array([1.0, np.nan], np.float32)}, copied / "broken.safetensors")
    index(copied, {"a": "broken.safetensors"})
    with pytest.raises(ModelError, match="tensor a holds numbers that are not finite"):
        read_tensors(copied)


def test_c75_pickled_weights_are_not_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "tiny-tied" / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"weights not found: .*Convert the model to safetensors"):
        load_model(tmp_path)


def test_c80_only_the_text_of_a_model_of_text_and_images_is_read(caplog: pytest.LogCaptureFixture) -> None:
    config, _ = load_model(GOLDEN / "gemma3")
    check_model(GOLDEN / "gemma3", config)
    assert (config.family, config.eos_ids) == ("gemma3_text", (2, 5))
    assert "tensors are left out (multi_modal_projector" in caplog.text
