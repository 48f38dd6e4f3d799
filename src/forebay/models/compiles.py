"""Counts the programs that JAX builds, so that a run can show that the number does not move after warm-up.

XLA reports `backend_compile_duration` once per program, whether it compiled it or fetched it from the
persistent cache: a program that was not planned is counted even when an earlier run has compiled it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

_PROGRAM_EVENT = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"


class CompiledProgram(NamedTuple):
    """One program that JAX asked XLA for: its name, and the seconds spent compiling or fetching it."""

    name: str
    compile_s: float


class CompileCounter:
    """Counts programs from its construction on, in every thread of the process; close it to stop.

    Example:
        >>> with CompileCounter() as compiles:
        ...     compiles.mark_warm()
        ...     compiles.since_warm()
        0
    """

    def __init__(self) -> None:
        self._programs: list[CompiledProgram] = []
        self._num_cache_hits = 0
        self._num_at_warm: int | None = None
        self._listens = True
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def __enter__(self) -> CompileCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def programs(self) -> tuple[CompiledProgram, ...]:
        """Every program so far, in order."""
        return tuple(self._programs)

    @property
    def num_cache_hits(self) -> int:
        """How many of the programs came from the persistent cache."""
        return self._num_cache_hits

    def mark_warm(self) -> None:
        """Declare that every planned program exists; what comes now is unplanned."""
        self._num_at_warm = len(self._programs)

    def since_warm(self) -> int:
        """Return the number of programs since `mark_warm`; 0 before it."""
        return len(self.unplanned())

    def unplanned(self) -> tuple[CompiledProgram, ...]:
        """Return the programs since `mark_warm`, to name them in a report."""
        return () if self._num_at_warm is None else self.programs[self._num_at_warm :]

    def close(self) -> None:
        """Stop counting; may be called again."""
        if self._listens:
            self._listens = False
            jax.monitoring.unregister_event_duration_listener(self._on_duration)
            jax.monitoring.unregister_event_listener(self._on_event)

    def _on_duration(self, event: str, duration_secs: float, **details: Any) -> None:
        if event == _PROGRAM_EVENT:
            self._programs.append(CompiledProgram(str(details.get("fun_name", "unnamed")), duration_secs))

    def _on_event(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT_EVENT:
            self._num_cache_hits += 1
