import msgspec
import numpy as np
import pytest
import xxhash

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader

PICKLE = b"cos\nsystem\n(S'touch canary'\ntR."


@pytest.fixture
def path(tmp_path):
    publisher = WeightPublisher(tmp_path, run_id="run")
    for number in (1, 2):
        publisher.publish(PolicyVersion(0, number), {"w": np.full(8, number, np.float32)})
    return tmp_path


def test_an_empty_or_missing_directory_has_no_version(tmp_path):
    reader = WeightReader(tmp_path / "missing")
    assert reader.latest() is None
    assert reader.newer_than(None) is None
    assert reader.versions() == ()
    with pytest.raises(WeightsError, match="no weights are published in"):
        reader.load()


def test_newer_than_is_strict_and_orders_by_incarnation_first(path):
    reader = WeightReader(path)
    assert reader.newer_than(None) == (0, 2)
    assert reader.newer_than(PolicyVersion(0, 1)) == (0, 2)
    assert reader.newer_than(PolicyVersion(0, 2)) is None
    assert reader.newer_than(PolicyVersion(1, 0)) is None


def test_a_version_without_its_marker_is_not_the_latest_but_can_be_named(path):
    (path / "latest").write_bytes(msgspec.json.encode({"version": [0, 1]}))
    reader = WeightReader(path)
    assert reader.latest() == (0, 1)
    assert float(reader.load(PolicyVersion(0, 2))[1]["w"][0]) == 2.0


def test_a_version_that_is_gone_with_none_newer_is_a_weights_error(path):
    with pytest.raises(WeightsError, match=r"version v-0-9 is no longer in .*v-0-2"):
        WeightReader(path).load(PolicyVersion(0, 9))


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "grow"])
def test_a_torn_or_changed_file_is_refused_by_name(path, damage):
    shard = path / "v-0-2" / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-3] ^= damage == "flip"
    shard.write_bytes({"cut": data[:-4], "empty": b"", "flip": data, "grow": data + b"x"}[damage])
    with pytest.raises(WeightsError, match=r"v-0-2/model.safetensors (is torn|does not match its manifest)"):
        WeightReader(path).load()


def test_a_directory_under_another_versions_name_is_refused(path):
    (path / "v-0-1").rename(path / "v-0-7")
    with pytest.raises(WeightsError, match=r"v-0-7/manifest.json is mislabelled \(got \(0, 1\)"):
        WeightReader(path).load(PolicyVersion(0, 7))


def test_another_layout_is_refused(path):
    manifest = path / "v-0-2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(WeightsError, match=r"another layout \(got 2, limit 1\)"):
        WeightReader(path).load()


@pytest.mark.parametrize("name", ["latest", "v-0-2/manifest.json", "v-0-2/model.safetensors"])
def test_c75_a_pickle_in_place_of_any_file_is_refused_and_not_run(path, name, monkeypatch):
    monkeypatch.chdir(path)
    (path / name).write_bytes(PICKLE)
    with pytest.raises(WeightsError):
        WeightReader(path).load()
    assert not (path / "canary").exists()


def test_c75_a_pickle_that_the_manifest_vouches_for_is_refused_and_not_run(path, monkeypatch):
    monkeypatch.chdir(path)
    (path / "v-0-2" / "model.safetensors").write_bytes(PICKLE)
    manifest = path / "v-0-2" / "manifest.json"
    content = msgspec.json.decode(manifest.read_bytes())
    content["shards"][0] |= {"num_bytes": len(PICKLE), "xxh3": xxhash.xxh3_128_hexdigest(PICKLE)}
    manifest.write_bytes(msgspec.json.encode(content))
    with pytest.raises(WeightsError, match="not a safetensors file"):
        WeightReader(path).load()
    assert not (path / "canary").exists()


@pytest.mark.parametrize("name", ["../v-0-1/model.safetensors", "weights.pkl", "/etc/passwd"])
def test_a_manifest_cannot_point_outside_its_directory_or_at_other_files(path, name):
    manifest = path / "v-0-2" / "manifest.json"
    content = msgspec.json.decode(manifest.read_bytes())
    content["shards"][0]["name"] = name
    manifest.write_bytes(msgspec.json.encode(content))
    with pytest.raises(WeightsError, match="shard name"):
        WeightReader(path).load()


def test_a_directory_without_a_manifest_is_no_version_and_does_not_stop_publishing(path):
    (path / "v-0-0").mkdir()
    assert WeightReader(path).versions() == ((0, 1), (0, 2))
    publisher = WeightPublisher(path, run_id="run")
    for number in range(3, 7):
        publisher.publish(PolicyVersion(0, number), {"w": np.zeros(1, np.float32)})
    assert WeightReader(path).versions() == ((0, 4), (0, 5), (0, 6))
