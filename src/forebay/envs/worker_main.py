"""The worker process of a blocking environment: `python -m forebay.envs.worker_main`.

Requests come on stdin and replies go to stdout, one JSON object a line. What the environment prints goes to
stderr. An environment that raises ends the process with its traceback on stderr; the other side sees the
end of the stream.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import os
import queue
import signal
import sys
import threading
from typing import Any, BinaryIO

import msgspec

from forebay.envs.processes import kill_descendants
from forebay.envs.protocol import Action, Observation, Outcome, Task

_PR_SET_CHILD_SUBREAPER = 36


class Open(msgspec.Struct, frozen=True, tag=True):
    """Import the environment's class."""

    entrypoint: str
    kwargs: dict[str, Any]


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Pose a task."""

    task: Task


class Step(msgspec.Struct, frozen=True, tag=True):
    """Answer an action."""

    action: Action


class Close(msgspec.Struct, frozen=True, tag=True):
    """End the episode."""


class Reply(msgspec.Struct, frozen=True):
    """What a request led to; `reset` fills observation, `step` fills outcome."""

    observation: Observation | None = None
    outcome: Outcome | None = None


Request = Open | Reset | Step | Close


class _Episodes:
    """Serves one episode after another, each with an instance of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._class: type[Any] | None = None
        self._kwargs: dict[str, Any] = {}
        self._environment: Any = None

    def serve(self, request: Request) -> Reply:
        match request:
            case Open(entrypoint, kwargs):
                module_name, _, class_name = entrypoint.partition(":")
                self._class = getattr(importlib.import_module(module_name), class_name)
                self._kwargs = kwargs
            case Reset(task):
                assert self._class is not None, "reset before open"
                self._environment = self._class(**self._kwargs)
                return Reply(observation=self._finish(self._environment.reset(task)))
            case Step(action):
                return Reply(outcome=self._finish(self._environment.step(action)))
            case Close():
                self._finish(self._environment.close())
                self._environment = None
        return Reply()

    def _finish(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            return self._runner.run(_wait_for(result))
        return result


async def _wait_for(result: Any) -> Any:
    return await result


def _read_requests(stream: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        requests.put(line)
    # The actor is gone or has let go: nothing that this process started may outlive it, stuck or not.
    kill_descendants(os.getpid())
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Serve requests until the stream ends."""
    if sys.platform == "linux":
        # Daemons that the environment leaves behind stay findable as descendants of this process.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    incoming = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(incoming, requests), daemon=True).start()
    episodes = _Episodes()
    decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
    while True:
        reply = episodes.serve(decoder.decode(requests.get()))
        replies.write(msgspec.json.encode(reply) + b"\n")


if __name__ == "__main__":
    main()
