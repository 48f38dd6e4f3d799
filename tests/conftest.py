"""What tests share: JAX on the CPU and bytecode with persistent caches, hypothesis profiles, time budgets."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent

# Seconds on two slow cores. Printed beside what was spent, never asserted: a loaded machine is not a bug.
BUDGET_S = {
    "tests/unit": 90,
    "tests/properties": 120,
    "tests/golden": 60,
    "tests/numerics": 180,
    "tests/statistical": 240,
    "tests/system": 600,
    "tests/house": 60,
    "src": 60,
}

# Each starts whole runs, several processes with deadlines: no two of them at the same time.
WHOLE_RUNS = {
    f"tests/system/test_{name}.py"
    for name in (
        "bucket_run",
        "critic_run",
        "disk_full",
        "docs",
        "fairness_run",
        "hostile_data",
        "init_env",
        "kills",
        "known_environments",
        "perfetto",
        "redis_run",
        "report",
        "report_browser",
        "resume",
        "telemetry",
        "vllm",
        "vllm_adapters",
        "vllm_families",
    )
}


def _keep_bytecode() -> None:
    """Keep compiled modules where Python was told not to: the tests start hundreds of processes."""
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "python")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _configure_jax() -> None:
    """Set what JAX reads once, before any test module imports it."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in ("--xla_force_host_platform_device_count=8", "--xla_cpu_multi_thread_eigen=false"):
        if flag.split("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        os.environ.setdefault(variable, "false" if variable.startswith("TOKENIZERS") else "1")


def _check_shapes() -> None:
    """Check the shapes and dtypes of every call into a module that annotates them."""
    package = ROOT / "src" / "forebay"
    shaped = [path for path in package.rglob("*.py") if "from jaxtyping import" in path.read_text()]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in shaped]
    jaxtyping.install_import_hook(names, "beartype.beartype")


def _leave_the_allocator_alone() -> None:
    """Let a worker give back what it frees: commands that keep it are called here by the dozen."""
    from forebay.launch import placement

    placement._allocate = lambda tunables, options: None


_keep_bytecode()
_configure_jax()
_check_shapes()
_leave_the_allocator_alone()

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


class TimeBudget:
    """Adds up the seconds spent per test directory and prints them beside the budget."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._collected_s = self._started_s
        self._spent_s: dict[str, float] = defaultdict(float)
        self._tests: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_finish(self) -> None:
        self._collected_s = time.perf_counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        directory = next((name for name in BUDGET_S if report.nodeid.startswith(f"{name}/")), "elsewhere")
        self._spent_s[directory] += report.duration
        self._tests[directory].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time budget")
        collection_s = self._collected_s - self._started_s
        if collection_s:  # which workers do by themselves
            terminalreporter.write_line(f"{'collection':<20} {'':>6} {collection_s:7.1f} s")
        for directory, spent_s in sorted(self._spent_s.items(), key=lambda item: -item[1]):
            budget_s = BUDGET_S.get(directory)
            line = f"{directory:<20} {len(self._tests[directory]):6d} {spent_s:7.1f} s"
            line += "" if budget_s is None else f"  of {budget_s} s"
            over = budget_s is not None and spent_s > budget_s
            terminalreporter.write_line(f"{line}  OVER" if over else line, red=over)


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file in one worker, and those that start whole runs one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "runs" if file in WHOLE_RUNS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Distribute the tests over the workers."""
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Watch the time of this run."""
    config.pluginmanager.register(TimeBudget(), "forebay-time-budget")
