from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.house import sources

# Whole packages that a process without JAX runs, and single modules of the packages that hold both worlds.
JAX_FREE_PACKAGES = (
    "actors", "batching", "chat", "cli", "clock", "config", "envs", "errors", "launch", "staleness", "store",
    "telemetry", "trajectory", "wire",
)  # fmt: skip
JAX_FREE_MODULES = (
    "forebay", "forebay.generation", "forebay.generation.client", "forebay.generation.protocol",
    "forebay.learner", "forebay.models", "forebay.objectives", "forebay.objectives.advantages",
    "forebay.weights",
)  # fmt: skip
# Bodies of commands that compute; each is imported inside its command, so that the others start without JAX.
COMMAND_BODIES = (
    "forebay.cli.learning",
    "forebay.cli.gang_learning",
    "forebay.cli.imitating",
    "forebay.cli.replaying",
    "forebay.cli.learner_parts",
    "forebay.cli.learner_telemetry",
    "forebay.cli.learner_weights",
    "forebay.cli.reference_model",
)

PROGRAM = """
import importlib, json, sys
guilty = {}
for name in json.loads(sys.argv[1]):
    before = set(sys.modules)
    importlib.import_module(name)
    heavy = sorted({"jax", "jaxlib", "optax", "orbax", "tensorstore", "flax"} & (set(sys.modules) - before))
    if heavy:
        guilty[name] = heavy
print(json.dumps(guilty))
"""


def _imported_by(names: list[str]) -> dict[str, list[str]]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(names)]
    environment = {**os.environ, "PYTHONPATH": str(sources.PACKAGE.parent)}
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_actor_side_never_imports_jax() -> None:
    names = [
        module.name
        for module in sources.modules()
        if module.name not in COMMAND_BODIES
        and (
            module.name in JAX_FREE_MODULES or module.name.split(".")[1:2] in ([p] for p in JAX_FREE_PACKAGES)
        )
    ]
    assert {"forebay.actors", "forebay.store", "forebay.envs", "forebay.wire"} <= set(names)
    assert _imported_by(names) == {}


@pytest.mark.parametrize("name", JAX_FREE_PACKAGES)
def test_listed_packages_exist(name: str) -> None:
    assert (sources.PACKAGE / name).is_dir() or (sources.PACKAGE / f"{name}.py").is_file()


def test_the_probe_sees_an_import_of_jax() -> None:
    assert _imported_by(["json", "jax"])["jax"][0] == "jax"
