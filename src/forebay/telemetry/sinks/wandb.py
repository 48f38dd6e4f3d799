"""Metrics to Weights & Biases, on its servers or in a directory that can be uploaded later."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from forebay.telemetry.metrics import Value
from forebay.telemetry.sinks.protocol import chart_values

_INIT_TIMEOUT_S = 30.0


class WandbSink:
    """Logs to a W&B run that has the name of the run here; a resumed run goes on with it.

    Args:
        directory: Where W&B keeps its files.
        mode: `online`, or `offline` to upload nothing.
        project: Project.
        run_id: Unique name of the run.
        config: What is shown as the run's configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        mode: Literal["offline", "online"],
        project: str,
        run_id: str,
        config: Mapping[str, Any],
    ) -> None:
        # Nothing but the run's own metrics leaves this machine, unless the user wants it.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        package: Any = importlib.import_module("wandb")
        directory.mkdir(parents=True, exist_ok=True)
        self._run = package.init(
            project=project,
            name=run_id,
            id=run_id,
            resume="allow",
            mode=mode,
            dir=str(directory),
            config=dict(config),
            settings=package.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                silent=True,
                init_timeout=_INIT_TIMEOUT_S,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        # Steps that are trained again after a resume come again: the step is a value, not W&B's own count.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Log every number."""
        self._run.log({"step": step, "time_s": time_s, **chart_values(values)})

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()
