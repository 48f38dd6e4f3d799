from __future__ import annotations

import os
import subprocess
import sys

from forebay.launch.placement import TUNABLES_VARIABLE, with_huge_pages


def test_what_the_environment_says_of_huge_pages_stays() -> None:
    assert with_huge_pages({}) == {TUNABLES_VARIABLE: "glibc.malloc.hugetlb=1"}
    assert with_huge_pages({TUNABLES_VARIABLE: "glibc.malloc.hugetlb=0"}) == {}


def test_a_process_with_it_starts_and_says_nothing() -> None:
    environ = os.environ | with_huge_pages({})
    done = subprocess.run(
        [sys.executable, "-c", "print(len(bytearray(1 << 27)))"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{1 << 27}\n", "")
