"""The best rate of matrix products in float32 that one thread of this machine reaches."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

# (rows, inner, columns): the products of a block of SmolLM2-135M, one of its head, and square ones.
SHAPES: Final = ((1024, 576, 1536), (1024, 1536, 576), (576, 1024, 1536), (1024, 1024, 1024))


class MatmulPeak:
    """Multiplies matrices by two libraries, the compiler's own and NumPy's, which do not share code.

    Args:
        shapes: (rows, inner, columns) of the products.
        seconds: How long each product of each library is repeated in one look, at least once.

    Attributes:
        best: Operations per CPU second, the best so far by library and shape.
    """

    def __init__(self, shapes: tuple[tuple[int, int, int], ...] = SHAPES, seconds: float = 0.1) -> None:
        self.best: defaultdict[str, float] = defaultdict(float)
        self._seconds = seconds
        self._works: dict[str, tuple[Any, Any, Any, int]] = {}
        rng = np.random.default_rng(0)
        for shape in shapes:
            rows, inner, columns = shape
            left, right = (
                rng.normal(size=size).astype(np.float32) for size in ((rows, inner), (inner, columns))
            )
            name, flops = "x".join(map(str, shape)), 2 * rows * inner * columns
            placed = jnp.asarray(left), jnp.asarray(right)
            program = jax.jit(jnp.matmul).lower(*placed).compile()
            self._works[f"xla {name}"] = (program, *placed, flops)
            self._works[f"numpy {name}"] = (np.matmul, left, right, flops)
        self.look()

    def look(self) -> float:
        """Measure every product once more; return the best of this look, operations per CPU second."""
        found = {name: self._rate(*work) for name, work in self._works.items()}
        for name, rate in found.items():
            self.best[name] = max(self.best[name], rate)
        return max(found.values())

    def _rate(self, multiply: Any, left: Any, right: Any, flops: int) -> float:
        rate, ends_s = 0.0, time.perf_counter() + self._seconds
        while rate == 0.0 or time.perf_counter() < ends_s:
            began_s = time.process_time()
            jax.block_until_ready(multiply(left, right))
            rate = max(rate, flops / max(time.process_time() - began_s, 1e-9))
        return rate
