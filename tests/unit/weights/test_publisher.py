import resource
import signal
import threading

import numpy as np
import pytest

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights import reader as reader_module
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.settings import WeightSettings
from forebay.weights.shard import digest_of


def tensors_of(value, size=64):
    return {"a": np.full(size, value, np.float32), "b": np.full(size, value, np.float32)}


def publisher_of(path, keep=3, **settings):
    return WeightPublisher(path, run_id="run", settings=WeightSettings(keep_versions=keep, **settings))


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_published_version_is_the_latest_and_loads_bit_for_bit(tmp_path, durability):
    published = publisher_of(tmp_path, durability=durability).publish(PolicyVersion(0, 4), tensors_of(4.5))
    reader = WeightReader(tmp_path)
    assert published == tmp_path / "v-0-4"
    assert reader.latest() == PolicyVersion(0, 4)
    version, loaded = reader.load()
    assert version == (0, 4)
    assert {name: tensor.tobytes() for name, tensor in loaded.items()} == {
        name: tensor.tobytes() for name, tensor in tensors_of(4.5).items()
    }


def test_tensors_beyond_the_shard_size_are_split_and_read_back_whole(tmp_path):
    tensors = {f"w{i}": np.full(200, i, np.float32) for i in range(5)}
    publisher_of(tmp_path, max_shard_bytes=1700).publish(PolicyVersion(0, 0), tensors)
    names = sorted(path.name for path in (tmp_path / "v-0-0").glob("*.safetensors"))
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    loaded = WeightReader(tmp_path).load()[1]
    assert sorted((name, float(tensor[199])) for name, tensor in loaded.items()) == [
        (f"w{i}", float(i)) for i in range(5)
    ]


def test_the_last_k_versions_are_kept_in_order_of_incarnation(tmp_path):
    publisher = publisher_of(tmp_path, keep=2)
    for version in [(0, 8), (0, 9), (0, 10), (1, 9), (1, 10)]:
        publisher.publish(PolicyVersion(*version), tensors_of(1.0))
    assert WeightReader(tmp_path).versions() == ((1, 9), (1, 10))


def test_versions_never_go_back(tmp_path):
    publisher = publisher_of(tmp_path)
    publisher.publish(PolicyVersion(1, 3), tensors_of(3.0))
    with pytest.raises(WeightsError, match=r"never go back \(got \(0, 9\), limit \(1, 3\)\)"):
        publisher.publish(PolicyVersion(0, 9), tensors_of(9.0))
    assert WeightReader(tmp_path).versions() == ((1, 3),)


def test_the_same_content_may_be_published_again_and_other_content_may_not(tmp_path):
    publisher_of(tmp_path).publish(PolicyVersion(0, 3), tensors_of(3.0))
    again = publisher_of(tmp_path)
    again.publish(PolicyVersion(0, 3), tensors_of(3.0))
    with pytest.raises(WeightsError, match="v-0-3 exists with other content"):
        again.publish(PolicyVersion(0, 3), tensors_of(3.5))
    assert WeightReader(tmp_path).load()[1]["a"][0] == 3.0


def test_a_replaying_learner_can_compare_what_it_makes_with_what_was_published(tmp_path):
    publisher_of(tmp_path).publish(PolicyVersion(0, 3), tensors_of(3.0))
    published = WeightReader(tmp_path).digest(PolicyVersion(0, 3))
    assert published == digest_of(tensors_of(3.0))
    assert published != digest_of(tensors_of(np.nextafter(np.float32(3), np.float32(4))))


def test_leftovers_of_a_killed_publisher_are_swept_and_do_not_disturb_it(tmp_path):
    publisher_of(tmp_path).publish(PolicyVersion(0, 1), tensors_of(1.0))
    for name in (".partial-v-0-2", ".trash-v-0-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".partial-latest").write_bytes(b"{")
    publisher_of(tmp_path).publish(PolicyVersion(0, 2), tensors_of(2.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "v-0-1", "v-0-2"]


def test_a_directory_of_another_run_is_refused(tmp_path):
    publisher_of(tmp_path).publish(PolicyVersion(0, 1), tensors_of(1.0))
    with pytest.raises(WeightsError, match="weights of another run"):
        WeightPublisher(tmp_path, run_id="other")


def test_a_full_disk_leaves_the_published_version_and_nothing_half_written(tmp_path):
    publisher = publisher_of(tmp_path)
    publisher.publish(PolicyVersion(0, 1), tensors_of(1.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(WeightsError, match=r"bytes free, limit 80000 bytes needed"):
            publisher.publish(PolicyVersion(0, 2), tensors_of(2.0, size=10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "v-0-1"]
    assert WeightReader(tmp_path).load()[0] == (0, 1)


def test_c62_a_version_being_read_is_not_deleted_and_a_deleted_one_is_replaced(tmp_path, monkeypatch):
    publisher = publisher_of(tmp_path, keep=2)
    publisher.publish(PolicyVersion(0, 1), tensors_of(1.0))
    begun, go_on = threading.Event(), threading.Event()
    read = reader_module._read_verified

    def read_slowly(path, shard):
        begun.set()
        assert go_on.wait(30)
        return read(path, shard)

    monkeypatch.setattr(reader_module, "_read_verified", read_slowly)
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(WeightReader(tmp_path).load(PolicyVersion(0, 1))))
    thread.start()
    assert begun.wait(30)
    for number in range(2, 6):
        publisher.publish(PolicyVersion(0, number), tensors_of(float(number)))
    assert WeightReader(tmp_path).versions() == ((0, 1), (0, 4), (0, 5))
    go_on.set()
    thread.join(30)
    assert loaded[0][0] == (0, 1)
    assert {float(x) for tensor in loaded[0][1].values() for x in tensor} == {1.0}

    publisher.publish(PolicyVersion(0, 6), tensors_of(6.0))
    assert WeightReader(tmp_path).versions() == ((0, 5), (0, 6))
    version, tensors = WeightReader(tmp_path).load(PolicyVersion(0, 1))
    assert (version, float(tensors["b"][0])) == ((0, 6), 6.0)
