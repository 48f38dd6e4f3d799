from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from forebay.errors import ConfigError, ModelError  # noqa: E402
from forebay.models.gguf_file import check_gguf, is_gguf, read_gguf, read_tensors  # noqa: E402
from tests.unit.models import gguf_files  # noqa: E402

Q = gguf.GGMLQuantizationType
ROWS = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)


def test_metadata_is_what_was_written(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        {"a": ROWS},
        x__true=True,
        x__floats=[0.5, -2.0],
        x__ints=[1, -1],
        x__text="Grüße",
    )
    metadata = read_gguf(path).metadata
    assert metadata["x.true"] is True
    assert (metadata["x.floats"], metadata["x.ints"]) == ([0.5, -2.0], [1, -1])
    assert metadata["x.text"] == "Grüße"
    assert metadata["tokenizer.ggml.tokens"] == gguf_files.TOKENS


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
def test_tensors_of_every_type_come_near_what_was_stored(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"other": ROWS[:1], "a": ROWS}, {"a": kind})
    tensor = read_tensors(read_gguf(path))["a"]
    assert (tensor.dtype, tensor.shape) == (np.float32, (3, 256))
    np.testing.assert_array_equal(tensor, gguf.dequantize(gguf.quantize(ROWS, kind), kind))
    bits = {Q.F32: 24, Q.F16: 10, Q.BF16: 7, Q.Q8_0: 7}.get(kind, 3)
    assert np.abs(tensor - ROWS).max() <= np.abs(ROWS).max() * 2.0**-bits


def test_q8_0_by_hand(tmp_path: Path) -> None:
    block = struct.pack("<e32b", 0.25, *range(-16, 16))
    path = gguf_files.write(tmp_path / "m.gguf", {"a": np.zeros((1, 32))}, {"a": Q.Q8_0})
    path.write_bytes(path.read_bytes()[: read_gguf(path).tensors["a"].offset_bytes] + block)
    assert read_tensors(read_gguf(path))["a"].tolist() == [[0.25 * number for number in range(-16, 16)]]


def test_axes_are_in_row_major_order(tmp_path: Path) -> None:
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    file = read_gguf(gguf_files.write(tmp_path / "m.gguf", {"a": cube, "b": cube[0, 0]}))
    assert file.tensors["a"].shape == (2, 3, 4)
    np.testing.assert_array_equal(read_tensors(file)["a"], cube)
    assert read_tensors(file)["b"].tolist() == [0, 1, 2, 3]


def test_every_cut_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"a": ROWS, "b": ROWS}, {"b": Q.Q8_0})
    whole = path.read_bytes()
    tensors = read_gguf(path).tensors
    data_starts, data_ends = tensors["a"].offset_bytes, tensors["b"].offset_bytes + 3 * 256 // 32 * 34
    for length in [*range(0, data_ends, 37), data_ends - 1]:
        path.write_bytes(whole[:length])
        if length < 4:
            expected = "is not a GGUF file"
        elif length < data_starts - 32:
            expected = "is cut short: it ends within its header"
        else:
            expected = "is cut short"
        with pytest.raises(ModelError, match=expected):
            check_gguf(read_gguf(path))


def test_hostile_bytes_give_an_error_and_no_large_allocation(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"a": ROWS[:, :32]})
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    for _ in range(300):
        changed = bytearray(whole)
        for position in random.integers(4, len(whole) - 384, 3):
            changed[position] = random.integers(256)
        path.write_bytes(changed)
        try:
            read_tensors(read_gguf(path))
        except ModelError:
            continue


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"PK\x03\x04 a zip archive", "is not a GGUF file"),
        (b"", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), r"version that is not supported \(got 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "cut short"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**61) + b"\0" * 64, "cut short"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77) + b"\0" * 64, r"unknown type: k \(got 77"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"\xff", 4) + b"\0" * 64, "not UTF-8"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIQQIQ", 3, 1, 0, 1, b"t", 2, 2**40, 2**40, 0, 0) + b"\0" * 64,
            "impossible shape",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=named):
        read_gguf(path)


def test_a_type_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"a": ROWS})
    whole = path.read_bytes()
    row = struct.pack("<Q1sIQQI", 1, b"a", 2, 256, 3, Q.F32)
    assert whole.count(row) == 1
    path.write_bytes(whole.replace(row, row[:-4] + struct.pack("<I", 999)))
    with pytest.raises(ModelError, match=r"tensor a of .* has a type .*got 999.*newer gguf package"):
        check_gguf(read_gguf(path))


def test_a_type_that_is_known_by_name_only_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"a": ROWS})
    row = struct.pack("<Q1sIQQI", 1, b"a", 2, 256, 3, Q.F32)
    path.write_bytes(path.read_bytes().replace(row, row[:-4] + struct.pack("<I", Q.I32)))
    with pytest.raises(ModelError, match="tensor a is stored as I32"):
        read_tensors(read_gguf(path))


def test_without_the_package_plain_types_are_read_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gguf_files.write(tmp_path / "plain.gguf", {"a": ROWS}, {"a": Q.BF16})
    quantized = gguf_files.write(tmp_path / "quantized.gguf", {"a": ROWS}, {"a": Q.Q4_1})
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert read_tensors(read_gguf(plain))["a"].shape == (3, 256)
    with pytest.raises(ConfigError, match=r"pip install 'forebay\[gguf\]'"):
        check_gguf(read_gguf(quantized))


def test_a_path_names_a_file_or_a_directory(tmp_path: Path) -> None:
    (tmp_path / "directory.gguf").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert not is_gguf(tmp_path / "directory.gguf")
    assert is_gguf(tmp_path / "missing.gguf")
    assert is_gguf(tmp_path / "file")
    with pytest.raises(ModelError, match="no GGUF file"):
        read_gguf(tmp_path / "missing.gguf")
