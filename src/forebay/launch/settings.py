"""Settings of the supervisor that runs a whole training on one machine."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

# One that runs, one that is measured for the summary, and one for what else is slow on such a machine.
_STEPS_TO_SAVE: Final = 3.0


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
        60.0,
        gt=0,
        description="A process that lived this long has its restarts forgiven; the learner only if it has "
        "trained a new step too, as it may need longer than that to come to what ends it.",
    )
    stop_grace_s: float = Field(
        20.0,
        gt=0,
        description="Time between asking a process to stop and killing it; the learner gets three of its "
        "longest steps more, to end one and to save.",
    )
    stop_grace_max_s: float = Field(900.0, gt=0, description="The most that those steps raise it to.")
    gang_grace_s: float = Field(
        5.0,
        gt=0,
        description="Once a process of the learner has failed, time for the others to end by themselves, so "
        "that each says why, before they are killed and all are started again.",
    )
    done_grace_s: float = Field(
        2.0, gt=0, description="The same for generator, actors and evaluator once the learner is done."
    )

    def saving_grace_s(self, step_s: float) -> float:
        """Return how long a learner may take to end its step and to save its state.

        Args:
            step_s: Its longest step; 0 if none is known.

        Example:
            >>> LaunchSettings(stop_grace_s=20.0, stop_grace_max_s=100.0).saving_grace_s(15.0)
            65.0
        """
        return max(self.stop_grace_s, min(self.stop_grace_s + _STEPS_TO_SAVE * step_s, self.stop_grace_max_s))
