from __future__ import annotations

from pathlib import Path

from forebay.store.bench.flatness import measure_flatness

MIB = 2**20


def test_c52_memory_and_file_do_not_grow_with_what_went_through(tmp_path: Path) -> None:
    found = measure_flatness(tmp_path, resident=(8, 16), cycles=(1_000, 4_000))
    assert found.file_bytes[1] <= 1.1 * found.file_bytes[0]
    assert found.rss_bytes[1] - found.rss_bytes[0] < 20 * MIB
    assert found.resident == (8, 16) and found.index_ratio > 0.0
    assert list(tmp_path.iterdir()) == []
