import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from forebay.errors import WeightsError
from forebay.weights.shard import decode, digest_of, encode

TENSORS = {
    "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.bias": np.array([1, 2, 3], np.int8),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 4), np.float16),
}


def to_bytes(tensors):
    return b"".join(bytes(piece) for piece in encode(tensors))


def as_array(data):
    return np.frombuffer(data, np.uint8).copy()


def test_the_safetensors_library_reads_what_we_write():
    loaded = safetensors.numpy.load(to_bytes(TENSORS))
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded[name], tensor)


def test_we_read_what_the_safetensors_library_writes():
    loaded = decode(as_array(safetensors.numpy.save(TENSORS)), "x")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(loaded[name], tensor)


def test_bfloat16_survives_and_loaded_tensors_are_read_only():
    tensor = np.array([1.00390625, -2.5], np.float32).astype(ml_dtypes.bfloat16)
    loaded = decode(as_array(to_bytes({"w": tensor})), "x")["w"]
    assert loaded.tobytes() == tensor.tobytes() == b"\x80\x3f\x20\xc0"
    with pytest.raises(ValueError, match="read-only"):
        loaded[0] = 0


def test_tensors_of_any_memory_layout_are_written_in_row_order():
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(safetensors.numpy.load(to_bytes({"w": transposed}))["w"], transposed)


def test_the_digest_tells_apart_name_shape_type_and_sign_of_zero_but_not_order():
    base = {"x": np.zeros(4, np.float32), "y": np.ones(2, np.int32)}
    variants = [
        base,
        {"z": base["x"], "y": base["y"]},
        {"x": base["x"].reshape(2, 2), "y": base["y"]},
        {"x": np.zeros(4, np.int32), "y": base["y"]},
        {"x": -base["x"], "y": base["y"]},
    ]
    assert len({digest_of(tensors) for tensors in variants}) == len(variants)
    assert digest_of(dict(reversed(base.items()))) == digest_of(base)


@pytest.mark.parametrize("dtype", [np.complex64, np.uint16, "M8[s]"])
def test_a_type_without_a_safetensors_name_is_refused(dtype):
    with pytest.raises(WeightsError, match="tensor w cannot be published"):
        to_bytes({"w": np.zeros(2, dtype)})


GOOD = to_bytes({"w": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:7],
        GOOD[:20],
        (2**40).to_bytes(8, "little") + GOOD[8:],
        GOOD.replace(b"[0,8]", b"[0,9]"),
        GOOD.replace(b"[0,8]", b"[8,0]"),
        GOOD.replace(b"[2]", b"[3]"),
        GOOD.replace(b"[2]", b"[-2]"),
        GOOD.replace(b'"F32"', b'"F31"'),
        b"cos\nsystem\n(S'touch canary'\ntR." * 4,
    ],
)
def test_c75_bytes_that_are_not_safetensors_are_refused(data):
    with pytest.raises(WeightsError):
        decode(as_array(data), "x")
