"""Settings of the supervisor that runs a whole training on one machine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LaunchSettings(BaseModel):
    """How processes are placed, restarted and stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learner_cpus: tuple[int, ...] = Field(
        (), description="Cores of the learner; empty divides the machine's cores by itself."
    )
    other_cpus: tuple[int, ...] = Field(
        (), description="Cores of generator, actors and evaluator; empty: the rest."
    )
    max_restarts: int = Field(5, ge=0, description="Restarts of one process in a row before the run ends.")
    restart_backoff_s: float = Field(
        0.5, gt=0, description="Wait before the first restart; doubles each time."
    )
    restart_backoff_max_s: float = Field(30.0, gt=0, description="Longest wait before a restart.")
    stable_s: float = Field(
        60.0, gt=0, description="A process that lived this long has its restarts forgiven."
    )
    stop_grace_s: float = Field(
        20.0, gt=0, description="Time between asking a process to stop and killing it."
    )
    done_grace_s: float = Field(
        2.0, gt=0, description="The same for generator, actors and evaluator once the learner is done."
    )
