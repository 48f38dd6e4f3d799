from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import AdapterRecord, merge
from forebay.weights.layout import BASE_NAME
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors, digest_of

A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
W = "model.layers.0.self_attn.q_proj.weight"
BASE: Tensors = {
    W: np.arange(6, dtype=np.float32).reshape(3, 2),
    "model.norm.weight": np.ones(2, np.float32),
}


def adapters(value: float) -> Tensors:
    return {A: np.array([[1.0, 2.0]], np.float32), B: np.full((3, 1), value, np.float32)}


@pytest.fixture
def publisher(tmp_path: Path) -> WeightPublisher:
    return WeightPublisher(tmp_path / "weights", run_id="r")


def publish(publisher: WeightPublisher, version: int, value: float) -> None:
    record = AdapterRecord(base=publisher.publish_base(BASE), scale=0.5)
    publisher.publish(PolicyVersion(0, version), adapters(value), adapter=record)


def test_what_is_merged_is_w_plus_scale_b_a() -> None:
    merged = merge(BASE, adapters(4.0), 0.5)
    np.testing.assert_array_equal(merged[W], [[2.0, 5.0], [4.0, 7.0], [6.0, 9.0]])
    assert merged["model.norm.weight"] is BASE["model.norm.weight"]
    np.testing.assert_array_equal(BASE[W], np.arange(6, dtype=np.float32).reshape(3, 2))


def test_a_reader_gets_whole_weights_of_versions_that_are_adapters(publisher: WeightPublisher) -> None:
    reader = WeightReader(publisher.path)
    for version, value in ((0, 0.0), (1, 4.0), (2, -1.0)):
        publish(publisher, version, value)
        found, tensors = reader.load()
        assert found == PolicyVersion(0, version)
        np.testing.assert_array_equal(tensors[W], merge(BASE, adapters(value), 0.5)[W])
        assert set(tensors) == set(BASE)
        assert reader.digest(found) == digest_of(adapters(value))
    bytes_of_version = sum(path.stat().st_size for path in (publisher.path / "v-0-2").glob("*.safetensors"))
    assert bytes_of_version < 500
    assert reader.versions() == tuple(PolicyVersion(0, version) for version in (0, 1, 2))


def test_the_model_is_published_once_and_outlives_its_versions(publisher: WeightPublisher) -> None:
    publish(publisher, 0, 0.0)
    inode = (publisher.path / BASE_NAME / "model.safetensors").stat().st_ino
    for version in range(1, 6):
        publish(publisher, version, float(version))
    resumed = WeightPublisher(publisher.path, run_id="r")
    resumed.publish_base(BASE)
    assert (publisher.path / BASE_NAME / "model.safetensors").stat().st_ino == inode
    with pytest.raises(WeightsError, match="another model than the adapters are trained on"):
        resumed.publish_base({W: BASE[W] + 1})


def test_adapters_are_not_merged_into_another_model(publisher: WeightPublisher) -> None:
    publisher.publish_base(BASE)
    other = AdapterRecord(base="0" * 32, scale=1.0)
    publisher.publish(PolicyVersion(0, 0), adapters(1.0), adapter=other)
    with pytest.raises(WeightsError, match="another model than the adapters belong to"):
        WeightReader(publisher.path).load()


def test_adapters_without_their_model_are_refused(publisher: WeightPublisher) -> None:
    record = AdapterRecord(base=digest_of(BASE), scale=1.0)
    publisher.publish(PolicyVersion(0, 0), adapters(1.0), adapter=record)
    with pytest.raises(WeightsError, match="Restart the learner: it publishes the model again"):
        WeightReader(publisher.path).load()


def test_who_opens_files_by_itself_is_told_to_ask_for_whole_weights(publisher: WeightPublisher) -> None:
    publish(publisher, 0, 1.0)
    with (
        pytest.raises(WeightsError, match=r'holds adapters only.*weights\.adapters="merged"'),
        WeightReader(publisher.path).hold(PolicyVersion(0, 0)),
    ):
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        {A: adapters(1.0)[A]},
        {A: np.zeros((1, 5), np.float32), B: adapters(1.0)[B]},
        {A.replace("q_proj", "k_proj"): adapters(1.0)[A], B.replace("q_proj", "k_proj"): adapters(1.0)[B]},
        {A: np.zeros((2, 2), np.float32), B: adapters(1.0)[B]},
        {B: adapters(1.0)[B]},
        {A: np.zeros(2, np.float32), B: adapters(1.0)[B]},
        adapters(1.0) | {"base_model.model.lm_head.weight": np.zeros((3, 2), np.float32)},
    ],
    ids=["no B", "another width", "no such weight", "another rank", "no A", "no matrix", "no adapter"],
)
def test_an_adapter_that_fits_nothing_is_refused(wrong: Tensors) -> None:
    with pytest.raises(WeightsError, match="does not fit the published model"):
        merge(BASE, wrong, 1.0)


def test_a_damaged_model_is_never_merged(publisher: WeightPublisher) -> None:
    publish(publisher, 0, 1.0)
    path = publisher.path / BASE_NAME / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="does not match its manifest"):
        WeightReader(publisher.path).load()
