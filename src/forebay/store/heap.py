"""Memory that was freed is kept for the next frames, not given back to the system and asked for again.

glibc gives the end of its heap back as soon as 128 KB of it are free, and every page that is asked for again
costs a page fault: for a trajectory of 52 KiB as much time as storing it. It learns to keep more from the
first large block that is freed, in every thread.

References:
    mallopt(3): M_MMAP_THRESHOLD, "dynamic mmap threshold"; M_TRIM_THRESHOLD is twice as much.
"""

from __future__ import annotations

from typing import Final

# Up to twice this stays with the process: a few frames of several MB, or a batch of small ones.
_BLOCK_BYTES: Final = 16 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 32 MiB of freed memory; elsewhere than with glibc, nothing happens.

    The block itself is never touched, so that it costs addresses and no memory.
    """
    bytes(_BLOCK_BYTES)
