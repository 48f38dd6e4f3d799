"""The table of compiled programs: filled once, looked up ever after, and nothing is compiled by a look-up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from forebay.errors import ConfigError

Shape = tuple[int, int]
# Its name, and (rows, length) of the micro-batch that it takes, if it takes one.
Program = tuple[str, Shape | None]
logger = logging.getLogger(__name__)


class Compiled(NamedTuple):
    """A program that is ready: its name, that it is the n-th of all, and how long it took, seconds."""

    name: str
    number: int
    total: int
    compile_s: float


def log_compiled(done: Compiled) -> None:
    """Say how far compiling is."""
    logger.info("compiled %d of %d programs: %s, %.1f s", done.number, done.total, done.name, done.compile_s)


class ProgramTable:
    """Compiled programs by their name and the shape of their rows."""

    def __init__(self) -> None:
        self._compiled: dict[Program, Any] = {}

    def fill(
        self,
        planned: Iterable[Program],
        lower: Callable[[str, Shape | None], Any],
        told: Callable[[Compiled], None],
    ) -> tuple[str, ...]:
        """Compile programs; return a name for each that is in the table.

        Args:
            planned: What to compile.
            lower: Gives a program before it is compiled, a `jax.stages.Lowered`.
            told: Called after each program.
        """
        planned = list(planned)
        for number, (name, shape) in enumerate(planned, start=1):
            began_s = time.monotonic()
            self._compiled[name, shape] = lower(name, shape).compile()
            told(Compiled(_label(name, shape), number, len(planned), time.monotonic() - began_s))
        return tuple(_label(name, shape) for name, shape in self._compiled)

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """Return (rows, length) of everything that a program was compiled for."""
        return tuple(shape for known, shape in self._compiled if known == name and shape is not None)

    def program(self, name: str, shape: Shape | None) -> Any:
        """Return a compiled program.

        Raises:
            ConfigError: It was not planned.
        """
        try:
            return self._compiled[name, shape]
        except KeyError:
            raise ConfigError(
                f"no compiled {name} program for this (rows, length)",
                got=shape,
                limit=sorted(self.shapes(name)),
                remedy="Plan the shape: every bucket goes through warm_up before the first step.",
            ) from None


def _label(name: str, shape: Shape | None) -> str:
    return name if shape is None else f"{name}{list(shape)}"
