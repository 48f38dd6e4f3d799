import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from forebay.models.compiles import CompileCounter


def double(x):
    return x + x


def test_programs_are_counted_and_named_once_each():
    function, x = jax.jit(double), np.ones(3, np.float32)
    with CompileCounter() as compiles:
        function(x)
        function(x)
        assert [program.name for program in compiles.programs] == ["jit(double)"]
        assert compiles.since_warm() == 0
        compiles.mark_warm()
        function(x)
        assert compiles.since_warm() == 0
        function(np.ones(5, np.float32))
        jnp.ones(3) * 2.5
        assert compiles.since_warm() >= 2
        assert compiles.unplanned()[0].name == "jit(double)"


def test_a_program_compiled_ahead_counts_once_and_calling_it_counts_nothing():
    with CompileCounter() as compiles:
        compiled = jax.jit(double).lower(jax.ShapeDtypeStruct((11,), jnp.float32)).compile()
        compiles.mark_warm()
        compiled(np.ones(11, np.float32))
        assert (len(compiles.programs), compiles.since_warm()) == (1, 0)


def test_a_closed_counter_hears_nothing_and_closes_twice():
    compiles = CompileCounter()
    compiles.close()
    compiles.close()
    jax.jit(double)(np.ones(13, np.float32))
    assert compiles.programs == ()


SCRIPT = """
import jax, numpy as np
from forebay.models.compiles import CompileCounter
with CompileCounter() as compiles:
    compiles.mark_warm()
    jax.jit(lambda x: x * 3 + 1)(np.ones(17, np.float32))
    print(compiles.since_warm(), compiles.num_cache_hits)
"""


def test_c48_an_unplanned_program_is_counted_even_when_the_persistent_cache_serves_it(tmp_path):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    command = [sys.executable, "-c", SCRIPT]
    counted = [
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout.split()
        for _ in range(2)
    ]
    assert counted == [["1", "0"], ["1", "1"]]
