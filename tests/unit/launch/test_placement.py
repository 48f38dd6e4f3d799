from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

from forebay.launch.placement import TUNABLES_VARIABLE, with_huge_pages

# Allocates 256 MB as a program's temporary memory is, in a thread of its own, and prints how many pages that
# took the kernel the second time.
_AGAIN = """
import ctypes, resource, threading
from forebay.launch.placement import keep_freed_memory, share_one_heap
share_one_heap()
keep_freed_memory()
libc, size = ctypes.CDLL(None), 1 << 28
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use():
    at = libc.malloc(size)
    libc.memset(at, 1, size)
    libc.free(at)
def used():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(used(), used())
"""


def test_what_the_environment_says_of_huge_pages_stays() -> None:
    assert with_huge_pages({}) == {TUNABLES_VARIABLE: "glibc.malloc.hugetlb=1"}
    assert with_huge_pages({TUNABLES_VARIABLE: "glibc.malloc.hugetlb=0"}) == {}


def test_a_process_with_it_starts_and_says_nothing() -> None:
    environ = os.environ | with_huge_pages({})
    done = subprocess.run(
        [sys.executable, "-c", "print(len(bytearray(1 << 27)))"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{1 << 27}\n", "")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes the allocator of glibc")
@pytest.mark.parametrize(("tunables", "kept"), [("", True), ("glibc.malloc.trim_threshold=1000000", False)])
def test_freed_memory_is_there_for_the_next_thread_unless_the_environment_says_otherwise(
    tunables: str, kept: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN],
        env=os.environ | {TUNABLES_VARIABLE: tunables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second = map(int, done.stdout.split())
    pages = (1 << 28) // resource.getpagesize()
    assert first > 0.9 * pages
    assert second < 0.1 * pages if kept else second > 0.9 * pages
