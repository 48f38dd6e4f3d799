"""Memory that a process frees stays with it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS, BLOCKS, BLOCK_BYTES = 20, 8, 1_000_000
PROGRAM = f"""
import resource
from forebay.store.heap import keep_freed_memory

def work():
    return [bytearray({BLOCK_BYTES}) for _ in range({BLOCKS})]

keep_freed_memory()
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")
def test_frames_do_not_fault_again_and_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # Given back and asked for again, every page of every round would be a fault.
    assert int(done.stdout) < ROUNDS * BLOCKS * BLOCK_BYTES // 4096 // 20
