"""Counts how often XLA compiled, so that "a fixed number of programs" is measured and not believed."""

from __future__ import annotations

import threading

import jax.monitoring

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Number and total time of the compilations of this process since its construction.

    A program that comes from the persistent cache counts too: it also stops the loop that needed it. JAX
    keeps listeners for the life of the process, so there should be one counter, made early.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._total_s = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    @property
    def count(self) -> int:
        """Compilations so far."""
        return self._count

    @property
    def total_s(self) -> float:
        """Seconds spent compiling so far."""
        return self._total_s

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILE_EVENT:
            with self._lock:
                self._count += 1
                self._total_s += duration_secs
