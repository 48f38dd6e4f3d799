"""One run of the product, its generator replaced by one whose device waits."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.prediction_study.settings import Setting
from forebay.cli.roles import free_port
from forebay.cli.runs import Run, own_run
from forebay.cli.train import processes
from forebay.clock import SystemClock
from forebay.config import RunConfig, load_config
from forebay.errors import PeerFailedError
from forebay.launch import ProcessSpec, Supervisor
from forebay.learner.run_directory import RunLayout
from forebay.telemetry.summary import RunSummary, read_summary

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = Path(__file__).with_name("base.toml")
# Of the waiting device: a decode block of 4 tokens, whatever the number of sequences.
BLOCK_S: Final = 0.04


def prepare_environment() -> None:
    """Let every process that is started find the benchmark's modules."""
    parts = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(parts)


def configure(setting: Setting, seconds_s: float, warmup_batches: int) -> RunConfig:
    """Return a setting as the configuration of a run.

    Args:
        setting: The setting.
        seconds_s: Training time, from the first batch on.
        warmup_batches: First batches that the figures leave out.
    """
    lasting = [
        f"learner.max_time_s={seconds_s:g}",
        f"learner.warmup_steps={warmup_batches}",
        f"run.name={setting.name}",
        f"generator.port={free_port()}",
    ]
    return load_config(BASE, [*setting.overrides, *lasting])


def run_product(config: RunConfig, path: Path) -> RunSummary:
    """Run a training anew and return its summary.

    Args:
        config: The run.
        path: Its directory; what is there is deleted.

    Raises:
        PeerFailedError: A process failed.
    """
    shutil.rmtree(path, ignore_errors=True)
    directory, run = own_run(config, path)
    with directory:
        run.open_store().close()
        supervisor = Supervisor(
            list(_processes(run)),
            run.layout.logs,
            config.launch,
            SystemClock(),
            report=lambda line: print(line, file=sys.stderr),
            inherited=(directory.fileno(),),
        )
        code = supervisor.run()
    if code or supervisor.stopped or supervisor.num_restarts:
        raise PeerFailedError(f"the run in {path} did not end well: {supervisor.first_cause or code}")
    return read_summary(RunLayout(path).summary, RunSummary)


def generator_command(run_path: Path, port: int) -> tuple[str, ...]:
    """Return the command of the generator whose device waits."""
    module = ("-m", "benchmarks.prediction_study.generator")
    return (sys.executable, *module, str(run_path), "--port", str(port), "--block-s", str(BLOCK_S))


def _processes(run: Run) -> Iterator[ProcessSpec]:
    for spec in processes(run):
        if spec.name == "generator":
            argv = generator_command(run.layout.path, run.config.generator.port)
            yield msgspec.structs.replace(spec, argv=argv)
        else:
            yield spec
