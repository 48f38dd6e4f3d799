"""An environment as a user would write it, and one that misbehaves in a worker process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Guess:
    """Guess a number; the environment says higher or lower."""

    def __init__(self, *, most: int = 9) -> None:
        self.most = most

    async def reset(self, task: Task) -> Observation:
        self.number = task.payload["number"]
        return Observation((Message("user", f"0 to {self.most}"),))

    async def step(self, action: Action) -> Outcome:
        if action.text == str(self.number):
            return Outcome(reward=1.0, terminated=True)
        return Outcome(observation=Observation((Message("tool", "no"),)))

    async def close(self) -> None:
        pass

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int, *, start: int = 0) -> Iterator[dict[str, Any]]:
        for i in range(num_tasks):
            yield {"task_id": f"n{i}", "payload": {"number": start + i}}


class Blocking:
    """Synchronous; what it does depends on what it is told."""

    def __init__(self, *, directory: str = "") -> None:
        self.directory = Path(directory)

    def reset(self, task: Task) -> Observation:
        print("printing must not disturb the protocol")
        if task.payload.get("hang"):
            (self.directory / "ready").touch()
            time.sleep(600)
        return Observation((Message("user", str(os.getpid())),))

    def step(self, action: Action) -> Outcome:
        match action.text:
            case "hang":
                self._spawn("import time; time.sleep(600)", detached=False)
                self._spawn("import time; time.sleep(600)", detached=True)
                (self.directory / "ready").touch()
                time.sleep(600)
            case "raise":
                raise ValueError("the environment is broken")
            case "exit":
                sys.exit(3)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "spawn":
                self._spawn("import time; time.sleep(600)", detached=True)
            case "text reward":
                return Outcome(reward="1.0", terminated=True)  # type: ignore[arg-type]
            case "nan":
                return Outcome(reward=float("nan"), terminated=True)
        return Outcome(
            observation=Observation((Message("tool", action.text),)), reward=0.5, metrics={"n": 1.0}
        )

    def close(self) -> None:
        pass

    def _spawn(self, code: str, *, detached: bool) -> None:
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=detached)
        (self.directory / f"pid-{child.pid}").touch()


class Counting:
    """Says what it draws and where it lives; leaves a file for every time that it is preloaded."""

    blocking = True

    def __init__(self, *, directory: str = "", hang: bool = False) -> None:
        pass

    @staticmethod
    def preload(*, directory: str = "", hang: bool = False) -> None:
        (Path(directory) / f"preload-{os.getpid()}").touch()
        if hang:
            time.sleep(600)

    def reset(self, task: Task) -> Observation:
        return Observation((Message("user", f"{random.random()} {os.getpid()}"),))

    def step(self, action: Action) -> Outcome:
        return Outcome(reward=0.0, terminated=True)

    def close(self) -> None:
        pass


class Unforkable(Counting):
    """Wants its imports in every worker."""

    fork_safe = False


class Incomplete:
    """Not an environment."""

    def reset(self) -> None:
        pass
